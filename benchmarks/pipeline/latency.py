"""From the return of a commit at the source to the moment that another connection sees the row in the target.

A pipeline in a process of its own carries single rows, written at a steady rate, to a second database. The clock is that of
one machine. Beside it, what Spark takes for a micro-batch in which there is nothing to do.
"""

import json
import statistics
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from urllib.parse import urlsplit

from benchmarks.comparison import percentile
from benchmarks.pipeline.statements import create_events, last_event, publish_events, write_event
from benchmarks.pipeline_process import POSTGRES, SOURCE_VARIABLE, TARGET_VARIABLE, PipelineProcess, pipeline_file, running
from benchmarks.report import Bar, Output
from benchmarks.statements import create_database, create_slot
from headwater.embedded import EmbeddedPostgres
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.statements import execute_sync, fetch_sync

NAME = "latency"
ROWS_PER_SECOND = 50
POLL_SECONDS = 0.003
# Java compiles what runs often, and Spark's first batches are slow.
WARM_UP_BATCHES, EMPTY_BATCHES = 50, 100
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Sizes:
    warm_up_seconds: int = 15
    seconds: int = 30


QUICK = Sizes(warm_up_seconds=6, seconds=10)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with output.console.status("empty micro-batches"):
        empty_ms = empty_batch_ms()
    with EmbeddedPostgres() as server, TemporaryDirectory() as directory:
        target_url = urlsplit(server.url)._replace(path="/target").geturl()
        prepare(server.url, target_url)
        urls = {SOURCE_VARIABLE: server.url, TARGET_VARIABLE: target_url}
        with running(Path(directory), pipeline_file(NAME, "public.event", POSTGRES), urls) as run:
            seconds = latencies_of(run, server.url, target_url, sizes, output)
            run.stop()
    p50, p99 = percentile(seconds, 50) * 1000, percentile(seconds, 99) * 1000
    output.figures.update(
        {
            "latency_rows": len(seconds),
            "latency_p95_ms": round(percentile(seconds, 95) * 1000, 1),
            "latency_max_ms": round(max(seconds) * 1000, 1),
            "latency_empty_batch_ms": round(empty_ms, 1),
        }
    )
    return [
        Bar("latency_p50_ms", round(p50, 1), at_most=200),
        Bar("latency_p99_ms", round(p99, 1), at_most=500),
        Bar("latency_over_empty_batch", round(p50 / empty_ms, 2), at_most=2.5),
    ]


def empty_batch_ms() -> float:
    command = [sys.executable, "-m", "benchmarks.pipeline.empty_batches", str(WARM_UP_BATCHES + EMPTY_BATCHES)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    durations: list[float] = json.loads(answer.stdout)
    return statistics.median(durations[WARM_UP_BATCHES:])


def prepare(source_url: str, target_url: str) -> None:
    with connect_sync(source_url) as source:
        execute_sync(source, create_events())
        execute_sync(source, publish_events(NAME))
        fetch_sync(source, create_slot(NAME))
        execute_sync(source, create_database("target"))
    with connect_sync(target_url) as target:
        execute_sync(target, create_events())


def latencies_of(run: PipelineProcess, source_url: str, target_url: str, sizes: Sizes, output: Output) -> list[float]:
    with connect_sync(source_url) as writer, connect_sync(target_url) as reader:
        watcher = Watcher(reader)
        with output.console.status("starting the pipeline"):
            execute_sync(writer, write_event(1))
            watcher.wait_for(1, run)
        with output.console.status(f"warming up for {sizes.warm_up_seconds} s"):
            warm = write_steadily(writer, 2, sizes.warm_up_seconds)
            watcher.wait_for(1 + len(warm), run)
        with output.console.status(f"{ROWS_PER_SECOND} rows a second for {sizes.seconds} s"):
            first = 2 + len(warm)
            began = time.perf_counter()
            committed = write_steadily(writer, first, sizes.seconds)
            output.figures["latency_rows_per_s"] = round(len(committed) / (time.perf_counter() - began), 1)
            watcher.wait_for(first + len(committed) - 1, run)
        return latencies(committed, first, watcher.stop())


def write_steadily(writer: Connection, first: int, seconds: int) -> list[float]:
    """Write single rows with ids from `first` on; returns when each commit had returned."""
    began, committed = time.perf_counter(), []
    for number in range(seconds * ROWS_PER_SECOND):
        time.sleep(max(0.0, began + number / ROWS_PER_SECOND - time.perf_counter()))
        execute_sync(writer, write_event(first + number))
        committed.append(time.perf_counter())
    return committed


@dataclass(frozen=True, slots=True)
class Sighting:
    """At this time the target had all rows up to this id."""

    time: float
    id: int


class Watcher:
    """Looks every few milliseconds for the last row in the target."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sightings = connection, [Sighting(0.0, 0)]
        self._stopping = Event()
        self._thread = Thread(target=self._watch, name="watcher", daemon=True)
        self._thread.start()

    def wait_for(self, id: int, run: PipelineProcess) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._sightings[-1].id < id:
            run.require_alive()
            if time.monotonic() > deadline:
                raise RuntimeError(f"row {id} did not come to the target in {PATIENCE_SECONDS:.0f} s")
            time.sleep(0.05)

    def stop(self) -> list[Sighting]:
        self._stopping.set()
        self._thread.join()
        return self._sightings

    def _watch(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            (last,) = fetch_sync(self._connection, last_event())
            if last > self._sightings[-1].id:
                self._sightings.append(Sighting(time.perf_counter(), last))


def latencies(committed: Sequence[float], first: int, sightings: Sequence[Sighting]) -> list[float]:
    """How long after its commit each row, with ids from `first` on, was first seen."""
    seen = [
        sightings[bisect_left(sightings, first + number, key=lambda one: one.id)].time for number in range(len(committed))
    ]
    return [at - since for at, since in zip(seen, committed, strict=True)]
