"""What the parts share: how many rows and turns, the table, and a Spark session that also knows JDBC."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.pipelines.output import Output
from benchmarks.pipelines.session import MASTER
from headwater.embedded import resolve_java, state_directory
from headwater.spark.session import build_session

# Durable, with checkpoints and vacuums kept out of the way, so that they do not fall into one arm and not the other.
SERVER: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "512MB",
    "autovacuum": "off",
}
TABLE: Final = "account"
JDBC_JAR: Final = Path("/usr/share/java/postgresql.jar")


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int = 5_000_000
    rounds: int = 3


QUICK: Final = Sizes(rows=300_000, rounds=1)


@contextmanager
def spark_session(settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """One session for all turns of a part: what Java compiles in one turn serves the next."""
    java = resolve_java(os.environ, state_directory())
    session = build_session("benchmark", master=MASTER, settings=settings, java_home=java)
    try:
        yield session
    finally:
        session.stop()


def in_turns(arms: Mapping[str, Callable[[], float]], rounds: int, what: str, output: Output) -> dict[str, list[float]]:
    """The seconds of each arm, turn by turn."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds):
        for name, arm in arms.items():
            with output.console.status(f"{what}, {name}, turn {turn + 1} of {rounds}"):
                seconds[name].append(arm())
    return seconds


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return round(statistics.median(their / our for their, our in zip(theirs, ours, strict=True)), 3)


def rate(rows: int, seconds: Sequence[float]) -> int:
    return round(rows / statistics.median(seconds))
