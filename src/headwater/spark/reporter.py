"""What a run tells of itself: gathered as batches are delivered, and written to the state database once a second at most.

Nothing is written while nothing happens, and nothing while another run has the pipeline.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Event, Lock, Thread

import psycopg

from headwater.capture.statements import commit_locally
from headwater.errors import HeadwaterError
from headwater.model import Position
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.statements import execute_sync
from headwater.spark.settings import PipelineSettings
from headwater.spark.sinks.sink import Written
from headwater.spark.sources.content import Content
from headwater.spark.state import Phase, Report, SinkReport, TableReport, save_report

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 1.0
# The rate is that of the last seconds: short enough to follow, long enough to read.
_RATE_SECONDS = 10.0
# The upper bounds of the classes that batches are counted in, by their time: 60 ms is a small one, 30 s a sink that is away.
BATCH_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class Delivered:
    """A batch that every sink has taken; `is_loading` if it has rows of tables that are read as a whole, too."""

    end: Position
    content: Content
    sinks: Mapping[str, tuple[Written, float]]
    seconds: float
    is_loading: bool = False

    @property
    def rows(self) -> int:
        """How many rows there were. Those of whole tables are counted where they arrive, by the sink that got the most."""
        if not self.is_loading:
            return self.content.changes
        return max(written.changes + written.skipped + written.letters for written, _ in self.sinks.values())


@dataclass(frozen=True, slots=True)
class Pulse:
    """Signs of life, by the clock of the reporter: when the run last looked around, and since when it is at a batch.

    `sink` is the one that has the batch, since `sink_at`; `batch_at` is None between batches. `times` are how many batches
    took at most as long as each of BATCH_SECONDS, and not as long as the one before; the last is of those that took longer.
    """

    looked_at: float
    ended_at: float
    batch_at: float | None = None
    sink: str | None = None
    sink_at: float = 0.0
    batches: int = 0
    seconds: float = 0.0
    times: tuple[int, ...] = (0,) * (len(BATCH_SECONDS) + 1)


class Reporter:
    """Keeps the report of a run up to date, for this process and in the state database."""

    def __init__(self, settings: PipelineSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._lock = Lock()
        self._report = Report(phase=Phase.STARTING)
        self._pulse = Pulse(clock(), clock())
        self._recent: list[tuple[float, int]] = []
        # More for Prometheus to read, in its own form, of whoever takes part in the run.
        self.more_metrics: list[Callable[[], bytes]] = []
        self._is_ours = False
        self._dirty = Event()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="reporter", daemon=True)

    @property
    def report(self) -> Report:
        with self._lock:
            return replace(self._report, rows_per_second=self._rate())

    @property
    def pulse(self) -> Pulse:
        return self._pulse

    @property
    def clock(self) -> Callable[[], float]:
        return self._clock

    def start(self) -> None:
        """Write that the run begins, which must succeed, and keep the report up to date from then on."""
        with self._lock:
            self._report = replace(self._report, phase=Phase.STARTING, error=None)
        with translated(self._settings.state_url), closing(self._connect()) as connection:
            self._is_ours = True
            self._save(connection)
        if not self._thread.is_alive():
            self._thread.start()

    def stand_by(self) -> None:
        """Another run has the pipeline: what is written of it is that one's, until `start`."""
        self._is_ours = False
        self.enter(Phase.STANDING_BY)

    def enter(self, phase: Phase, error: str | None = None) -> None:
        with self._lock:
            before = self._report
            self._report = replace(before, phase=phase, error=error)
        if self._report == before:
            return
        # What failed is said by whoever retries or gives up, with the reason.
        if error is None:
            _log.info("pipeline %s: %s", self._settings.name, phase, extra=self.facts)
        self._dirty.set()

    @property
    def facts(self) -> dict[str, object]:
        """What a line of the log says of the run besides its message."""
        report = self._report
        facts: dict[str, object] = {
            "pipeline": self._settings.name,
            "phase": str(report.phase),
            "slot": self._settings.source.slot,
        }
        return facts if report.position is None else {**facts, "position": str(report.position)}

    def look(self) -> None:
        """The run is alive."""
        with self._lock:
            self._pulse = replace(self._pulse, looked_at=self._clock())

    def begin(self, sink: str | None = None) -> None:
        """A batch begins; or with a sink, that one's part of it."""
        with self._lock:
            now, before = self._clock(), self._pulse.batch_at
            self._pulse = replace(self._pulse, batch_at=now if before is None else before, sink=sink, sink_at=now)

    def end(self) -> None:
        """A batch has ended, well or not."""
        with self._lock:
            self._pulse = replace(self._pulse, batch_at=None, sink=None)

    def add(self, batch: Delivered) -> None:
        with self._lock:
            old = self._report
            tables = dict(old.tables)
            for name, changes in batch.content.tables.items():
                before = tables.get(name, TableReport())
                tables[name] = TableReport(before.changes + changes, batch.content.committed_at)
            sinks = {name: _sum(old.sinks.get(name, SinkReport()), *result) for name, result in batch.sinks.items()}
            self._recent.append((self._clock(), batch.rows))
            self._pulse = _counted(self._pulse, batch.seconds, self._clock())
            self._report = replace(
                old,
                position=batch.end,
                committed_at=batch.content.committed_at or old.committed_at,
                rows=old.rows + batch.rows,
                batch_seconds=batch.seconds,
                tables=tables,
                sinks={**old.sinks, **sinks},
            )
        self._dirty.set()

    def stop(self) -> None:
        """Write what is left to say."""
        self._stopping.set()
        self._dirty.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _rate(self) -> float:
        now = self._clock()
        self._recent = [(at, rows) for at, rows in self._recent if now - at <= _RATE_SECONDS]
        return sum(rows for _, rows in self._recent) / _RATE_SECONDS if self._recent else 0.0

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._dirty.wait()
            try:
                with closing(self._connect()) as connection:
                    self._write_until_stopped(connection)
            except (HeadwaterError, psycopg.Error) as exc:
                _log.warning("status not written: %s", exc, extra={"pipeline": self._settings.name})
                self._stopping.wait(_INTERVAL_SECONDS)

    def _connect(self) -> Connection:
        connection = connect_sync(self._settings.state_url)
        try:
            # A standby that commits wait for must not keep us from saying how things are.
            execute_sync(connection, commit_locally())
        except BaseException:
            connection.close()
            raise
        return connection

    def _write_until_stopped(self, connection: Connection) -> None:
        while True:
            self._dirty.wait()
            self._dirty.clear()
            self._save(connection)
            if self._stopping.wait(_INTERVAL_SECONDS):
                self._save(connection)
                return

    def _save(self, connection: Connection) -> None:
        if self._is_ours:
            save_report(connection, self._settings.name, self._settings.source.slot, self.report)


def _sum(before: SinkReport, written: Written, seconds: float) -> SinkReport:
    return SinkReport(
        before.changes + written.changes, before.skipped + written.skipped, before.letters + written.letters, seconds
    )


def _counted(pulse: Pulse, seconds: float, now: float) -> Pulse:
    place = next((place for place, most in enumerate(BATCH_SECONDS) if seconds <= most), len(BATCH_SECONDS))
    times = tuple(count + (number == place) for number, count in enumerate(pulse.times))
    return replace(pulse, ended_at=now, batches=pulse.batches + 1, seconds=pulse.seconds + seconds, times=times)
