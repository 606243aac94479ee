"""What a run tells of itself: gathered as batches are delivered, and written to the state database once a second at most.

Nothing is written while nothing happens.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Event, Lock, Thread

import psycopg

from headwater.errors import HeadwaterError
from headwater.model import Position
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.spark.settings import PipelineSettings
from headwater.spark.sinks.sink import Written
from headwater.spark.sources.content import Content
from headwater.spark.state import Phase, Report, SinkReport, TableReport, save_report

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 1.0
# The rate is that of the last seconds: short enough to follow, long enough to read.
_RATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """A batch that every sink has taken."""

    end: Position
    content: Content
    sinks: Mapping[str, tuple[Written, float]]
    seconds: float


class Reporter:
    """Keeps the report of a run up to date, for this process and in the state database."""

    def __init__(self, settings: PipelineSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._lock = Lock()
        self._report = Report(phase=Phase.STARTING)
        self._recent: list[tuple[float, int]] = []
        self._dirty = Event()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="reporter", daemon=True)

    @property
    def report(self) -> Report:
        with self._lock:
            return replace(self._report, rows_per_second=self._rate())

    def start(self) -> None:
        """Write the first report, which must succeed, and keep it up to date from then on."""
        with translated(self._settings.state_url), closing(connect_sync(self._settings.state_url)) as connection:
            self._save(connection)
        self._thread.start()

    def enter(self, phase: Phase, error: str | None = None) -> None:
        with self._lock:
            self._report = replace(self._report, phase=phase, error=error)
        self._dirty.set()

    def add(self, batch: Delivered) -> None:
        with self._lock:
            old = self._report
            tables = dict(old.tables)
            for name, changes in batch.content.tables.items():
                before = tables.get(name, TableReport())
                tables[name] = TableReport(before.changes + changes, batch.content.committed_at)
            sinks = {name: _sum(old.sinks.get(name, SinkReport()), *result) for name, result in batch.sinks.items()}
            self._recent.append((self._clock(), batch.content.changes))
            self._report = replace(
                old,
                position=batch.end,
                committed_at=batch.content.committed_at or old.committed_at,
                rows=old.rows + batch.content.changes,
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
                with closing(connect_sync(self._settings.state_url)) as connection:
                    self._write_until_stopped(connection)
            except (HeadwaterError, psycopg.Error) as exc:
                _log.warning("status not written: %s", exc, extra={"pipeline": self._settings.name})
                self._stopping.wait(_INTERVAL_SECONDS)

    def _write_until_stopped(self, connection: Connection) -> None:
        while True:
            self._dirty.wait()
            self._dirty.clear()
            self._save(connection)
            if self._stopping.wait(_INTERVAL_SECONDS):
                self._save(connection)
                return

    def _save(self, connection: Connection) -> None:
        save_report(connection, self._settings.name, self._settings.source.slot, self.report)


def _sum(before: SinkReport, written: Written, seconds: float) -> SinkReport:
    return SinkReport(
        before.changes + written.changes, before.skipped + written.skipped, before.letters + written.letters, seconds
    )
