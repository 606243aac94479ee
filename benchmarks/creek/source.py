"""A stream through Spark's source `headwater.creek` to a sink that does nothing: all messages decoded, as `changes`.

The clock runs from the moment that the stream is first read to the end of the query; what it takes with its start is among
the figures. One Spark session for all turns; a first turn does not count.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from benchmarks.creek.stream_clock import StreamClock
from benchmarks.creek.testbed import DATABASE, TABLE, Turn, fill_stream, rate_of, start_testbed, write_orders
from benchmarks.report import Bar, Output
from benchmarks.spark_session import spark_session
from benchmarks.wal_bench import SERVER
from headwater.brokers.nats import NatsAccess
from headwater.creek.names import Kind, Names
from headwater.spark.sources import register

AIM = 100_000


@dataclass(frozen=True, slots=True)
class Sizes:
    messages: int = 500_000
    rounds: int = 3


QUICK = Sizes(messages=100_000, rounds=2)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with (
        start_testbed(output, SERVER) as testbed,
        output.console.status("starting Spark") as status,
        spark_session() as spark,
    ):
        status.stop()
        register(spark)
        with testbed.bench.loaded("source", sizes.messages, write_orders) as load:
            names = fill_stream(testbed, load)
        turns = []
        for turn in range(1 + sizes.rounds):
            what = "warming up" if turn == 0 else f"reading {sizes.messages:,} messages, turn {turn} of {sizes.rounds}"
            with output.console.status(what):
                turns.append(turn_of(spark, testbed.access, names, sizes.messages))
    output.figures["source_aim"] = AIM
    return [Bar("source_messages_per_s", rate_of(turns[1:], "source", sizes.messages, output), at_least=30_000)]


def turn_of(spark: SparkSession, access: NatsAccess, names: Names, count: int) -> Turn:
    """All messages, once, through a query with a checkpoint of its own."""
    options = {"url": access.url, "namespace": names.root, "tables": f"{DATABASE}.{TABLE}"}
    changes = spark.readStream.format("headwater.creek").options(**options).load()
    with TemporaryDirectory() as directory, StreamClock(access, names.stream(Kind.WAL)) as clock:
        began = time.perf_counter()
        writer = changes.writeStream.format("noop").option("checkpointLocation", str(Path(directory, "checkpoint")))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        ended = time.perf_counter()
    read = sum(progress.numInputRows for progress in query.recentProgress)
    assert read == count, f"{read} of {count} messages came to the sink"
    return Turn(ended - clock.started, ended - began)
