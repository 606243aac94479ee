"""A backlog from the WAL to JetStream through a pipeline, against our own publisher with the same messages ready.

The messages of the second arm are those that the first has stored: bytes, number and ids are the same, and go to a stream of
the same kind. The clock of ours runs from the first read of the slot, that of the publisher from its call, and both to the
moment at which the server stored the last message. One Spark session for all turns; a first turn of it does not count.
"""

import statistics
import time
from contextlib import closing
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from threading import Event

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.creek.testbed import (
    PUBLICATION,
    TABLE,
    Testbed,
    Turn,
    drop_streams,
    make_streams,
    rate_of,
    require_stored,
    start_testbed,
    subject_of,
    unix_time,
    write_orders,
)
from benchmarks.report import Bar, Output
from benchmarks.slot_clock import SlotClock
from benchmarks.spark_session import spark_session
from benchmarks.wal_bench import SERVER, Load
from headwater.brokers.nats import NatsAccess, Outgoing, Publisher, StreamReader
from headwater.creek.names import Kind, Names
from headwater.spark.pipeline import Pipeline
from headwater.spark.settings import ChangesSettings, NatsSinkSettings, PipelineSettings, SnapshotRule
from headwater.spark.sinks.build import build_sinks

AIM = 60_000
_READ_MESSAGES, _PATIENCE_SECONDS = 10_000, 60.0
_ID = b"Nats-Msg-Id: "


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int = 500_000
    warm_up: int = 50_000
    rounds: int = 3


QUICK = Sizes(rows=200_000, warm_up=50_000, rounds=2)


@dataclass(frozen=True, slots=True)
class Ready:
    """Messages that only have to be sent."""

    ids: pa.Array
    payloads: pa.Array


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with (
        start_testbed(output, SERVER) as testbed,
        output.console.status("starting Spark") as status,
        spark_session() as spark,
    ):
        status.stop()
        with testbed.bench.loaded("warm_up", sizes.warm_up, write_orders) as load, output.console.status("warming up"):
            turn_of_ours(testbed, spark, load, testbed.fresh_names())
        with testbed.bench.loaded("wal", sizes.rows, write_orders) as load:
            ours, ceilings = in_turns(testbed, spark, load, sizes.rounds)
    output.figures["wal_to_jetstream_aim"] = AIM
    output.figures["wal_to_jetstream_ceiling_per_s"] = round(sizes.rows / statistics.median(ceilings))
    per_second = rate_of(ours, "wal_to_jetstream", sizes.rows, output)
    ratio = statistics.median(ceiling / turn.seconds for turn, ceiling in zip(ours, ceilings, strict=True))
    return [
        Bar("wal_to_jetstream_per_s", per_second, at_least=25_000),
        Bar("wal_to_jetstream_over_ceiling", round(ratio, 3), at_least=0.4),
    ]


def in_turns(testbed: Testbed, spark: SparkSession, load: Load, rounds: int) -> tuple[list[Turn], list[float]]:
    ours, ceilings = [], []
    ready: Ready | None = None
    console = testbed.bench.console
    for turn in range(rounds):
        names = testbed.fresh_names()
        with console.status(f"{load.rows:,} rows to JetStream, turn {turn + 1} of {rounds}"):
            ours.append(turn_of_ours(testbed, spark, load, names))
        ready = ready or read_all(testbed.access, names, load.rows)
        with closing(testbed.link()) as link:
            drop_streams(link, names)
        with console.status(f"{load.rows:,} ready messages to JetStream, turn {turn + 1} of {rounds}"):
            ceilings.append(seconds_of_publisher(testbed, ready))
    return ours, ceilings


def turn_of_ours(testbed: Testbed, spark: SparkSession, load: Load, names: Names) -> Turn:
    """Everything that the slot has, through a pipeline with a checkpoint of its own; all of it is stored afterwards."""
    url = testbed.bench.server.url
    with testbed.bench.copied(load) as slot, TemporaryDirectory() as directory, closing(testbed.link()) as link:
        settings = pipeline(url, slot, testbed.access, names, f"{directory}/checkpoint")
        with SlotClock(url, slot) as clock:
            began = time.time()
            Pipeline(spark, settings, build_sinks(settings), Event()).run(once=True)
        ended = require_stored(link, names, load.rows)
        return Turn(ended - unix_time(clock.started), ended - began)


def pipeline(url: str, slot: str, access: NatsAccess, names: Names, checkpoint: str) -> PipelineSettings:
    """As a pipeline file gives it, with no more said than whence and where to."""
    return PipelineSettings(
        name=slot,
        source=ChangesSettings(url=url, tables=(TABLE,), slot=slot, publication=PUBLICATION, snapshot=SnapshotRule.NEVER),
        sinks=(NatsSinkSettings(name="nats", access=access, namespace=names.root),),
        checkpoint=checkpoint,
        state_url=url,
    )


def read_all(access: NatsAccess, names: Names, rows: int) -> Ready:
    """The messages of a stream, with their ids."""
    ids: list[bytes] = []
    payloads: list[bytes] = []
    with closing(StreamReader(access, names.stream(Kind.WAL), [subject_of(names)], 0)) as reader:
        while len(ids) < rows:
            received = reader.read(_READ_MESSAGES, _PATIENCE_SECONDS)
            assert received, f"{len(ids)} of {rows} messages could be read again"
            ids += [id_of(one.headers or b"") for one in received]
            payloads += [one.payload for one in received]
    return Ready(pa.array(ids, pa.binary()), pa.array(payloads, pa.binary()))


def id_of(headers: bytes) -> bytes:
    return headers.partition(_ID)[2].partition(b"\r\n")[0]


def seconds_of_publisher(testbed: Testbed, ready: Ready) -> float:
    names = testbed.fresh_names()
    with closing(testbed.link()) as link, closing(Publisher(testbed.access)) as publisher:
        make_streams(link, names)
        outgoing = Outgoing(subject_of(names), ready.ids, ready.payloads)
        began = time.time()
        publisher.publish(outgoing)
        seconds = require_stored(link, names, len(outgoing)) - began
        drop_streams(link, names)
    return seconds
