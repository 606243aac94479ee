"""From the WAL to Spark's own noop sink, with all columns typed, against `pg_recvlogical` writing to /dev/null.

Each reads its own copy of the same slot, in turns. Both clocks run from the moment that the slot is read: neither the start
of a program nor that of a query is compared. What a query takes with its start is among the figures.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession

from benchmarks.report import Bar, Output
from benchmarks.slot_clock import SlotClock
from benchmarks.spark_session import spark_session
from benchmarks.statements import create_rows
from benchmarks.wal_bench import SERVER, Bench, Load, seconds_of_recvlogical, write_large, write_small
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync
from headwater.spark.sources import register


@dataclass(frozen=True, slots=True)
class Sizes:
    large: int = 1_000_000
    small: int = 300_000
    warm_up: int = 100_000
    rounds: int = 3


QUICK = Sizes(large=200_000, small=60_000, warm_up=30_000, rounds=2)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one query took: from the first read of the slot, and from its start."""

    seconds: float
    seconds_with_start: float


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with (
        EmbeddedPostgres(PostgresSettings(config=SERVER)) as server,
        connect_sync(server.url) as connection,
        output.console.status("starting Spark") as status,
        spark_session() as spark,
    ):
        status.stop()
        register(spark)
        execute_sync(connection, create_rows())
        bench = Bench(server, connection, output.console, output.figures)
        with bench.loaded("warm_up", sizes.warm_up, write_large) as load, bench.copied(load) as slot:
            turn_of_spark(bench, spark, slot, load)
        return [
            Bar("wal_to_noop_ratio_10k", ratio(bench, spark, "10k", sizes.large, write_large, sizes.rounds), at_least=0.45),
            Bar("wal_to_noop_ratio_1", ratio(bench, spark, "1", sizes.small, write_small, sizes.rounds), at_least=0.55),
        ]


def ratio(  # noqa: PLR0913 - where, what is loaded and how, and how often it is read
    bench: Bench, spark: SparkSession, label: str, rows: int, write: Callable[[Bench, int], None], rounds: int
) -> float:
    ours, theirs = [], []
    with bench.loaded(f"noop_{label}", rows, write) as load:
        for turn in range(rounds):
            with bench.console.status(f"transactions of {label} rows to noop, turn {turn + 1} of {rounds}"):
                with bench.copied(load) as slot, SlotClock(bench.server.url, slot) as clock:
                    seconds_of_recvlogical(bench.server, slot, load.end)
                    theirs.append(time.perf_counter() - clock.started)
                with bench.copied(load) as slot:
                    ours.append(turn_of_spark(bench, spark, slot, load))
    seconds = [turn.seconds for turn in ours]
    bench.figures.update(
        {
            f"wal_to_noop_rows_per_s_{label}": round(rows / statistics.median(seconds)),
            f"wal_to_noop_recvlogical_rows_per_s_{label}": round(rows / statistics.median(theirs)),
            f"wal_to_noop_seconds_{label}": round(statistics.median(seconds), 2),
            f"wal_to_noop_seconds_with_start_{label}": round(statistics.median(turn.seconds_with_start for turn in ours), 2),
        }
    )
    return round(statistics.median(their / our for our, their in zip(seconds, theirs, strict=True)), 3)


def turn_of_spark(bench: Bench, spark: SparkSession, slot: str, load: Load) -> Turn:
    """Everything that the slot has, through a query with a checkpoint of its own."""
    changes = read_table(spark, bench.server.url, slot)
    with TemporaryDirectory() as directory, SlotClock(bench.server.url, slot) as clock:
        began = time.perf_counter()
        writer = changes.writeStream.format("noop").option("checkpointLocation", str(Path(directory, "checkpoint")))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        ended = time.perf_counter()
    read = sum(progress.numInputRows for progress in query.recentProgress)
    # The truncate before the load is a change too.
    assert read == load.rows + 1, f"{read} of {load.rows + 1} changes came to the sink"
    return Turn(ended - clock.started, ended - began)


def read_table(spark: SparkSession, url: str, slot: str) -> DataFrame:
    options = {"url": url, "slot": slot, "publication": "bench", "shape": "table", "table": "t"}
    return spark.readStream.format("headwater.changes").options(**options).load()
