"""Reading the table after the slot was lost, against the reference, which sends one row at a time.

A pipeline in a process of its own has delivered some events and saved its checkpoint. Then all others are written, the slot
is dropped, and the pipeline is started again. Both clocks run from the moment that there is a new slot. Ours ends when the
stream has stored the last event; the reference is stopped after some thousand, and what all would take it follows from its
rate. Memory is what Python has resident, driver, planner and workers: pages that processes share are counted once.
"""

import asyncio
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from benchmarks.outbox_wal import reference_relay, statements
from benchmarks.outbox_wal.relay import unix_time
from benchmarks.outbox_wal.testbed import Target, Testbed, drop_slot, start_testbed
from benchmarks.pipeline_process import SOURCE_VARIABLE, TARGET_VARIABLE, PipelineProcess, running
from benchmarks.process_usage import MB, memory_of
from benchmarks.report import Bar, Output
from benchmarks.spark_session import MASTER
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync

NAME = "recovery"
REFERENCE_SLOT = "reference"
# Delivered before the slot is lost.
DELIVERED = 1_000
PER_TRANSACTION = 10
_LOOK_SECONDS, _SAMPLE_SECONDS = 0.005, 0.2


@dataclass(frozen=True, slots=True)
class Sizes:
    events: int = 1_000_000
    reference_events: int = 20_000


QUICK = Sizes(events=50_000, reference_events=4_000)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What our recovery took from the new slot on, and with the start of the program, and the most memory it had."""

    seconds: float
    seconds_with_start: float
    python_mb: float
    java_mb: float


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output) as testbed, TemporaryDirectory() as directory, testbed.target() as target:
        content = pipeline_file(target)
        testbed.write(DELIVERED, PER_TRANSACTION)
        with output.console.status("delivering what comes before"), run_once(testbed, directory, content) as run:
            run.finish()
        target.require(DELIVERED)
        (checkpoint,) = fetch_sync(testbed.connection, statements.newest_key())
        testbed.write(sizes.events, PER_TRANSACTION)
        drop_slot(testbed.connection, NAME)
        with output.console.status(f"recovering {sizes.events:,} events"):
            ours = recover(testbed, directory, content, target, DELIVERED + sizes.events)
        with testbed.target() as other, output.console.status(f"{sizes.reference_events:,} events by the reference"):
            found = asyncio.run(
                reference_relay.recover(testbed.url, REFERENCE_SLOT, other, checkpoint, sizes.reference_events)
            )
            other.require(found.events)
    theirs = found.seconds_of(sizes.events)
    output.figures.update(
        {
            "recovery_events": sizes.events,
            "recovery_seconds": round(ours.seconds, 1),
            "recovery_seconds_with_start": round(ours.seconds_with_start, 1),
            "recovery_events_per_s": round(sizes.events / ours.seconds),
            "recovery_java_mb": round(ours.java_mb),
            "recovery_reference_events": found.events,
            "recovery_reference_events_per_s": round(found.events / found.seconds_of_sending),
            "recovery_reference_seconds_of_all": round(theirs, 1),
        }
    )
    return [
        Bar("recovery_over_reference", round(theirs / ours.seconds, 2), at_least=5),
        Bar("recovery_rss_mb", round(ours.python_mb), at_most=500),
    ]


def recover(testbed: Testbed, directory: str, content: str, target: Target, wanted: int) -> Recovered:
    with SlotMade(testbed.url, NAME) as made:
        began = time.time()
        python = java = 0
        with run_once(testbed, directory, content) as run:
            while not run.is_over:
                of_java, of_python, _ = memory_of(run.pid)
                java, python = max(java, of_java), max(python, of_python)
                time.sleep(_SAMPLE_SECONDS)
            run.finish()
    ended = target.require(wanted).last
    return Recovered(ended - unix_time(made.at), ended - began, python / MB, java / MB)


def run_once(testbed: Testbed, directory: str, content: str) -> AbstractContextManager[PipelineProcess]:
    urls = {SOURCE_VARIABLE: testbed.url, TARGET_VARIABLE: testbed.access.url}
    return running(Path(directory), content, urls, "--once")


def pipeline_file(target: Target) -> str:
    return f"""\
name = "{NAME}"

[source]
type = "outbox"
url = "${{{SOURCE_VARIABLE}}}"

[[sinks]]
type = "nats"
url = "${{{TARGET_VARIABLE}}}"
subject = "{target.prefix}.{{topic}}"

[spark]
master = "{MASTER}"
"""


class SlotMade:
    """Waits in a thread of its own for a slot that is not there."""

    def __init__(self, url: str, slot: str) -> None:
        self._url, self._slot = url, slot
        self._leaving, self._at = Event(), 0.0
        self._thread = Thread(target=self._watch, name=f"clock {slot}", daemon=True)

    def __enter__(self) -> "SlotMade":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leaving.set()
        self._thread.join()

    @property
    def at(self) -> float:
        """When it was first seen, by `perf_counter`."""
        if not self._at:
            raise RuntimeError(f"slot {self._slot} was not made")
        return self._at

    def _watch(self) -> None:
        with connect_sync(self._url) as connection:
            while not self._leaving.wait(_LOOK_SECONDS):
                (is_there,) = fetch_sync(connection, statements.has_slot(self._slot))
                if is_there:
                    self._at = time.perf_counter()
                    return
