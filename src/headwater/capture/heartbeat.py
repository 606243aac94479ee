"""Heartbeats for quiet databases: when the server's WAL grows but nothing of it reaches us, write something that does.

Without them a slot whose tables are quiet may hold WAL until the disk is full. On a server where nothing happens, nothing is
written.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from threading import Event, Thread

import psycopg

from headwater.capture.settings import CaptureSettings
from headwater.capture.source import require_publications
from headwater.capture.statements import HEARTBEAT_PREFIX, commit_locally, emit_heartbeat, wal_position
from headwater.errors import ConnectionLost, HeadwaterError, SourceError
from headwater.model import Change, LogicalMessage, Lsn
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.statements import execute_sync, fetch_sync

_log = logging.getLogger(__name__)


def is_due(wal_end: Lsn, arrived: Lsn, last: Lsn, least_bytes: int) -> bool:
    """Whether the WAL has grown enough past both what has reached us and the last heartbeat."""
    return wal_end - max(arrived, last) >= least_bytes


def emit_mark(connection: Connection) -> Lsn:
    """Write a heartbeat now: the batch whose end reaches it holds all that committed before, and nothing is left out."""
    try:
        (position,) = fetch_sync(connection, emit_heartbeat())
    except psycopg.errors.ReadOnlySqlTransaction as exc:
        raise SourceError("a standby cannot mark where its WAL ends now; connect to the primary") from exc
    return position


def is_mark(change: Change | LogicalMessage) -> bool:
    """Whether this is a heartbeat or a mark of ours, which says nothing to anybody else."""
    return isinstance(change, LogicalMessage) and change.prefix == HEARTBEAT_PREFIX


class Heartbeat:
    """A thread with a connection of its own: a commit that hangs there holds up nothing else."""

    def __init__(
        self, settings: CaptureSettings, arrived: Callable[[], Lsn], on_trouble: Callable[[SourceError], None]
    ) -> None:
        self._settings, self._arrived, self._on_trouble = settings, arrived, on_trouble
        self._last = Lsn(0)
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=f"heartbeat {settings.slot}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, waiting a moment for it to hang up; a commit that hangs is left to end with its connection."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1)

    def _run(self) -> None:
        interval = self._settings.heartbeat_interval.total_seconds()
        while not self._stopping.wait(interval):
            try:
                self._beat_until_stopped(interval)
            except (HeadwaterError, psycopg.Error) as exc:
                _log.warning("no heartbeat: %s", exc, extra={"slot": self._settings.slot})
                if isinstance(exc, psycopg.errors.AdminShutdown) or "shutting down" in str(exc):
                    # It waits until its readers have confirmed everything: make way, and come back when it does.
                    self._on_trouble(ConnectionLost("the server is shutting down, and waits for what is not confirmed yet"))

    def _beat_until_stopped(self, interval: float) -> None:
        with closing(connect_sync(self._settings.url)) as connection:
            execute_sync(connection, commit_locally())
            self.beat(connection)
            while not self._stopping.wait(interval):
                self.beat(connection)

    def beat(self, connection: Connection) -> bool:
        """Write a heartbeat if one is due; returns whether it did. Looks whether the publications are still there, too."""
        try:
            require_publications(connection, self._settings.publications)
        except SourceError as exc:
            self._on_trouble(exc)
            return False
        (wal_end,) = fetch_sync(connection, wal_position())
        if wal_end is None or not is_due(wal_end, self._arrived(), self._last, self._settings.heartbeat_bytes):
            return False
        self._last = emit_mark(connection)
        _log.debug("heartbeat at %s", self._last, extra={"slot": self._settings.slot})
        return True
