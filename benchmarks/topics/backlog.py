"""A backlog of small messages read by Spark, over `copy` of the same messages, one per row, to /dev/null.

Spark reads it as a batch into its own noop sink, on a session that is there already; psql is that of the server, and its
copy is binary, which is quicker than text.
"""

import os
import subprocess
import time
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.comparison import in_turns, rate, ratio
from benchmarks.databases import psql_environment
from benchmarks.report import Bar, Output
from benchmarks.spark_session import spark_session
from benchmarks.topics import statements
from benchmarks.topics.headwater_arm import TOPIC
from benchmarks.topics.testbed import SERVER
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.sources import register
from headwater.topics import Message, create_sync, prepare_topics
from headwater.topics.append import encode_messages
from headwater.topics.frame import encode_frame
from headwater.topics.statements import append_held

PARTITIONS: Final = 4
MESSAGE_BYTES: Final = 100
# As many messages of this size as fit into a frame of the product.
FRAME_MESSAGES: Final = 1_250
# Frames in an append.
FRAMES: Final = 32
_COPY: Final = "copy copied_message to stdout (format binary)"


@dataclass(frozen=True, slots=True)
class Sizes:
    messages: int = 10_000_000
    rounds: int = 3


QUICK: Final = Sizes(messages=400_000, rounds=1)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with (
        EmbeddedPostgres(PostgresSettings(config={**SERVER, "autovacuum": "off"})) as server,
        connect_sync(server.url) as connection,
        spark_session() as spark,
    ):
        register(spark)
        with output.console.status(f"writing {sizes.messages:,} messages twice"):
            messages = fill(connection, sizes.messages)
        arms = {
            "spark": lambda: seconds_of_spark(spark, server.url),
            "copy": lambda: seconds_of_copy(server),
        }
        with output.console.status("warming up"):
            for arm in arms.values():
                arm()
        seconds = in_turns(arms, sizes.rounds, f"reading {messages:,} messages", output)
    output.figures["spark_read_per_s"] = rate(messages, seconds["spark"])
    output.figures["spark_copy_per_s"] = rate(messages, seconds["copy"])
    return [Bar("spark_read_over_copy", ratio(seconds["copy"], seconds["spark"]), at_least=0.5)]


def fill(connection: Connection, messages: int) -> int:
    """The same messages in a topic and in a table; how many those are."""
    prepare_topics(connection)
    topic = create_sync(connection, TOPIC, partitions=PARTITIONS)
    execute_sync(connection, statements.create_copied())
    appends = max(1, messages // (FRAME_MESSAGES * FRAMES))
    for _ in range(appends):
        payloads = [os.urandom(MESSAGE_BYTES) for _ in range(FRAME_MESSAGES)]
        frame = encode_frame(encode_messages(topic, [Message(payload) for payload in payloads]), compresses=False)
        partitions = [place % PARTITIONS for place in range(FRAMES)]
        (firsts,) = fetch_sync(connection, append_held(topic.id, partitions, [frame] * FRAMES))
        execute_sync(connection, statements.insert_copied(partitions, firsts, payloads))
    execute_sync(connection, statements.vacuum_copied())
    return appends * FRAME_MESSAGES * FRAMES


def seconds_of_spark(spark: SparkSession, url: str) -> float:
    began = time.perf_counter()
    backlog = spark.read.format("headwater.topic").option("url", url).option("topic", TOPIC).load()
    backlog.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def seconds_of_copy(server: EmbeddedPostgres) -> float:
    command = [str(server.bin_directory / "psql"), "--no-psqlrc", "--command", _COPY]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=psql_environment(server.url))
    return time.perf_counter() - began
