"""What the parts share: a server with durable commits, the processes that write and read, and a run of an arm."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.process_usage import cpu_of
from benchmarks.report import Output
from benchmarks.topics import statements
from benchmarks.topics.comparison_arms import Arm
from benchmarks.topics.headwater_arm import HeadwaterArm
from benchmarks.topics.load import Load, Reads, Writes
from benchmarks.topics.reference_log import CODED
from benchmarks.topics.workers import ENOUGH, UNKNOWN, Read, Workers, Write, working
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.topics import prepare_topics

# Commits are as durable and vacuums as frequent as they are by default. Checkpoints are made before each run, and kept out
# of its way, so that they do not fall into one arm and not the other; there are connections enough for the large shape.
SERVER: Final = {
    "min_wal_size": "4GB",
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "512MB",
    "max_connections": "800",
}
# A server that has run for a while uses its files of WAL again. A new one fills each of them with zeros first, which takes
# as long as to write them, and all writers wait meanwhile. So many are there before the first run, and again before each:
# somewhat less than the 256 of `min_wal_size`, and more than the fastest of them writes in its 15 seconds, or 2.
WAL_FILES: Final = 240
QUICK_WAL_FILES: Final = 40
GROUPS: Final = 5
_READY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.05
_WATCH_SECONDS: Final = 5.0

Watch: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Meter:
    """What the server has used up to a moment."""

    at: float
    cpu_seconds: float
    wal_bytes: float
    flushes: float
    commits: float

    def since(self, other: "Meter") -> "Meter":
        return Meter(
            self.at - other.at,
            self.cpu_seconds - other.cpu_seconds,
            self.wal_bytes - other.wal_bytes,
            self.flushes - other.flushes,
            self.commits - other.commits,
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """A run of one arm; `used` is what the server used while writers wrote."""

    load: Load
    writes: Writes
    reads: list[Reads]
    used: Meter

    @property
    def seconds(self) -> float:
        """From the first message until all groups had the last."""
        return max([self.writes.ended, *(one.ended for one in self.reads)]) - self.writes.began

    @property
    def has_all(self) -> bool:
        return all(one.count >= self.writes.count for one in self.reads)

    @property
    def ages(self) -> npt.NDArray[np.float64]:
        """How old messages were, from when they were due; the first fifth of the run is not counted."""
        return self._settled("age")

    @property
    def server_ages(self) -> npt.NDArray[np.float64]:
        """By the clock of the server, from when it noted them."""
        return self._settled("server_age")

    @property
    def client_cpu_seconds(self) -> float:
        return self.writes.cpu_seconds + sum(one.cpu_seconds for one in self.reads)

    def growth(self) -> float:
        """By how much older messages got, of the latter part over the earlier, in a second of the run."""
        third = self.load.seconds / 3
        due = np.concatenate([one.due for one in self.reads]) - self.writes.began
        age = np.concatenate([one.age for one in self.reads])
        early, late = age[(due >= third) & (due < 2 * third)], age[due >= 2 * third]
        if not early.size or not late.size:
            return float("inf")
        return float((np.median(late) - np.median(early)) / third)

    def _settled(self, name: str) -> npt.NDArray[np.float64]:
        due = np.concatenate([one.due for one in self.reads])
        values = np.concatenate([getattr(one, name) for one in self.reads])
        return cast("npt.NDArray[np.float64]", values[due >= self.writes.began + self.load.seconds / 5])


@dataclass(frozen=True, slots=True)
class Testbed:
    """A database with topics, and the processes."""

    url: str
    connection: Connection
    server: psutil.Process
    workers: Workers
    output: Output

    def meter(self) -> Meter:
        (written,) = fetch_sync(self.connection, statements.read_meter())
        return Meter(time.time(), cpu_of(self.server), written.wal_bytes, written.flushes, written.commits)

    def turn(self, arm: Arm, load: Load, *, patience_seconds: float = 2.0) -> Turn:
        """A run with tables of its own."""
        arm.prepare(self.connection, load)
        try:
            return self.run(arm, load, patience_seconds=patience_seconds)
        finally:
            arm.remove(self.connection)

    def run(self, arm: Arm, load: Load, *, patience_seconds: float = 2.0, watch: Watch = lambda: None) -> Turn:
        """Readers first; when all of them are at work, the writers. Meanwhile `watch` is called again and again."""
        execute_sync(self.connection, statements.reuse_wal())
        with self.reading(arm, load):
            self.workers.signals.began.value = 0.0
            self.workers.writer.begin(Write(arm, self.url, load, patience_seconds))
            used = self._metered(load, watch)
            writes = cast("Writes", self.workers.writer.result())
            self.workers.signals.expected.value = writes.count
            self._wait_for_readers(load, patience_seconds)
        reads = [cast("Reads", worker.result()) for worker in self.workers.readers[: load.groups]]
        return Turn(load, writes, reads, used)

    def _metered(self, load: Load, watch: Watch) -> Meter:
        """What is used from the first message on, for as long as messages are due."""
        began = self.workers.signals.began
        while not began.value and not self.workers.writer.is_done(0):
            time.sleep(_LOOK_SECONDS)
        time.sleep(max(began.value - time.time(), 0.0))
        before = self.meter()
        while (left := began.value + load.seconds - time.time()) > 0:
            time.sleep(min(left, _WATCH_SECONDS))
            watch()
        return self.meter().since(before)

    @contextmanager
    def reading(self, arm: Arm, load: Load) -> Iterator[None]:
        """The readers of all groups, which are told at the end that it is enough; their results are to be taken then."""
        self.workers.signals.expected.value = UNKNOWN
        for group in range(load.groups):
            self.workers.readers[group].begin(Read(arm, self.url, load, f"group{group}"))
        self._wait_until_ready(arm, load)
        try:
            yield
        finally:
            self.workers.signals.expected.value = ENOUGH

    def _wait_until_ready(self, arm: Arm, load: Load) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while load.groups and not arm.is_ready(self.connection, load):
            for worker in self.workers.readers[: load.groups]:
                if worker.is_done(0):
                    worker.result()
            assert time.monotonic() < deadline, f"the readers of {arm.name} are not ready"
            time.sleep(_LOOK_SECONDS)

    def _wait_for_readers(self, load: Load, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for worker in self.workers.readers[: load.groups]:
            worker.is_done(max(deadline - time.monotonic(), 0.0))


def wal_files(quick: bool) -> int:
    """How many files of WAL a part that writes much needs."""
    return QUICK_WAL_FILES if quick else WAL_FILES


@contextmanager
def start_testbed(output: Output, files: int = 0) -> Iterator[Testbed]:
    """A server of its own that has so many files of WAL to use again, and the processes."""
    with (
        output.console.status("starting PostgreSQL and the processes that write and read"),
        EmbeddedPostgres(PostgresSettings(config=SERVER)) as server,
        closing(connect_sync(server.url)) as connection,
        working(GROUPS, (CODED, HeadwaterArm())) as workers,
    ):
        prepare_topics(connection)
        for _ in range(files):
            execute_sync(connection, statements.fill_wal())
            execute_sync(connection, statements.switch_wal())
        postmaster = psutil.Process(connection.info.backend_pid).parent()
        assert postmaster is not None
        yield Testbed(server.url, connection, postmaster, workers, output)


def milliseconds(values: npt.NDArray[np.float64], percent: float) -> float:
    return round(float(np.percentile(values, percent)) * 1000, 2) if values.size else float("nan")
