"""The memory of a pipeline, all of its processes, while it drains a backlog to a sink that does nothing.

Counted are the resident pages of Spark's Java, and of each Python process its share of what it has resident: pages that a
process has in common with those forked from it are divided among them (`Pss` in /proc), not counted for each.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.pipeline_process import NOOP, SOURCE_VARIABLE, PipelineProcess, pipeline_file, running
from benchmarks.process_usage import MB, memory_of
from benchmarks.report import Bar, Output
from benchmarks.statements import create_rows
from benchmarks.wal_bench import SERVER, Bench, write_large
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.statements import execute_sync
from headwater.spark.state import fetch_report

NAME = "bench"
SAMPLE_SECONDS = 0.5
STEPS = 10


@dataclass(frozen=True, slots=True)
class Sizes:
    backlog: int = 10_000_000


QUICK = Sizes(backlog=1_000_000)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the processes had when so many rows were delivered."""

    rows: int
    java_mb: float
    python_mb: float
    resident_mb: float

    @property
    def total_mb(self) -> float:
        return self.java_mb + self.python_mb


def measure(quick: bool, output: Output) -> list[Bar]:
    rows = (QUICK if quick else Sizes()).backlog
    with (
        EmbeddedPostgres(PostgresSettings(config=SERVER)) as server,
        connect_sync(server.url) as connection,
        TemporaryDirectory() as directory,
    ):
        execute_sync(connection, create_rows())
        bench = Bench(server, connection, output.console, output.figures)
        content, urls = pipeline_file(NAME, "public.t", NOOP), {SOURCE_VARIABLE: server.url}
        with bench.loaded(NAME, rows, write_large), bench.console.status(f"draining {rows:,} rows") as status:
            began = time.perf_counter()
            with running(Path(directory), content, urls, "--once") as run:
                samples = []
                for sample in sampled(run, connection):
                    samples.append(sample)
                    status.update(f"drained {sample.rows:,} of {rows:,} rows, {sample.total_mb:,.0f} MB")
                run.finish()
            seconds = time.perf_counter() - began
        saved = fetch_report(connection, NAME)
    # The truncate before the load is a change too.
    assert saved is not None and saved.report.rows == rows + 1, f"not all of {rows + 1} changes were delivered"
    output.figures.update(growth(samples, rows))
    output.figures.update(
        {
            "backlog_rows": rows,
            "backlog_seconds_with_start": round(seconds, 1),
            "backlog_java_peak_mb": round(max(sample.java_mb for sample in samples)),
            "backlog_python_peak_mb": round(max(sample.python_mb for sample in samples)),
            # As some tools count: what processes have in common as often as there are processes.
            "backlog_resident_sum_peak_mb": round(max(sample.resident_mb for sample in samples)),
        }
    )
    return [Bar("backlog_rss_mb", round(max(sample.total_mb for sample in samples)), at_most=2000)]


def sampled(run: PipelineProcess, connection: Connection) -> Iterator[Sample]:
    """The memory of a run, again and again until it is over."""
    while not run.is_over:
        saved = fetch_report(connection, NAME)
        java, python, resident = memory_of(run.pid)
        yield Sample(saved.report.rows if saved else 0, java / MB, python / MB, resident / MB)
        time.sleep(SAMPLE_SECONDS)


def growth(samples: Sequence[Sample], rows: int) -> dict[str, float]:
    """The most that Java and Python had while each tenth of the backlog was on its way.

    One that went by between two samples is as the tenth before it; what is seen when all is delivered belongs to none.
    """
    found: dict[str, float] = {}
    java = python = math.nan
    for step in range(1, STEPS + 1):
        first, last = rows * (step - 1) // STEPS, rows * step // STEPS
        during = [sample for sample in samples if first <= sample.rows < last]
        java = max((round(sample.java_mb) for sample in during), default=java)
        python = max((round(sample.python_mb) for sample in during), default=python)
        found |= {f"backlog_java_mb_at_{label(last)}": java, f"backlog_python_mb_at_{label(last)}": python}
    return found


def label(rows: int) -> str:
    return f"{rows // 1_000_000}m" if rows % 1_000_000 == 0 else f"{rows // 1000}k"
