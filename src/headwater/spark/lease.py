"""The right to run a pipeline: an advisory lock in the state database, held by a session of its own as long as it lives.

Of several runs of one pipeline, one holds it and the others stand by. The server lets go of it when the session ends, which
is at once when the process was killed. The run that held it looks at the session once a second and stops when it is lost,
and the run that takes over waits a little longer than that takes.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from threading import Event, Thread
from types import MappingProxyType
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headwater import failpoints
from headwater.errors import ConnectionLost, HeadwaterError, SettingsError
from headwater.postgres.catalog import is_pooled
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.statements import execute_sync, fetch_sync, load
from headwater.spark.state import Phase, fetch_report, is_paused

_log = logging.getLogger(__name__)

SQL: Final = load("headwater.spark.state")

_LOOK_SECONDS: Final = 1.0
# A look that has not come back for so long may never; the server lets go of the session of a dead network later than that.
_STALE_SECONDS: Final = 10.0
# How long a run that has lost its session may go on: until its next look, and until Spark has let go of its tasks.
_GRACE_SECONDS: Final = 2.0
# How a server that fell silent is noticed; what the URL says of it wins.
_ALIVE: Final[Mapping[str, str]] = MappingProxyType(
    {"keepalives_idle": "2", "keepalives_interval": "1", "keepalives_count": "3", "tcp_user_timeout": "4000"}
)


@dataclass(frozen=True, slots=True)
class Holder:
    """The session that holds a pipeline."""

    pid: int
    machine: str

    def __str__(self) -> str:
        return f"server process {self.pid}, from {self.machine}"


def find_holder(url: str, pipeline: str) -> Holder | None:
    """Who runs a pipeline, if anybody does."""
    with translated(url), closing(connect_sync(url)) as connection:
        return next(iter(fetch_sync(connection, SQL["find_holder"].bind(Holder, pipeline=pipeline))), None)


class Lease:
    """A pipeline's lease, as one process sees it. `url` is the state database."""

    def __init__(self, url: str, pipeline: str) -> None:
        self._url, self._pipeline = url, pipeline
        self._connection: Connection | None = None
        self._thread: Thread | None = None
        self._ended = Event()
        self._looked_at = 0.0
        self._is_paused = False

    @property
    def is_held(self) -> bool:
        """Whether this process may run the pipeline, as far as it can know."""
        is_fresh = time.monotonic() - self._looked_at < _STALE_SECONDS
        return self._thread is not None and not self._ended.is_set() and is_fresh

    @property
    def is_paused(self) -> bool:
        """Whether the pipeline is paused, as of a second ago."""
        return self._is_paused

    def take(self) -> bool:
        """Take the lease if it is free; if not, the session stays, to ask again. Raises what keeps us from asking."""
        if self._thread is not None:
            self.release()
        with translated(self._url):
            try:
                connection = self._connection = self._connection or self._open()
                if fetch_sync(connection, SQL["take_lease"].bind(bool, pipeline=self._pipeline)) != [True]:
                    return False
            except BaseException:
                self.release()
                raise
        self._ended, self._looked_at = Event(), time.monotonic()
        self._thread = Thread(target=self._watch, args=[connection, self._ended], name="lease", daemon=True)
        self._thread.start()
        return True

    def wait(self, stopping: Event) -> bool:
        """Take the lease as soon as it is free, whatever keeps us from asking meanwhile; False if asked to stop before."""
        said = ""
        while not stopping.is_set():
            try:
                if self.take():
                    return True
            except HeadwaterError as exc:
                if not exc.retryable:
                    raise
                if str(exc) != said:
                    _log.warning("%s; trying again", exc, extra={"pipeline": self._pipeline})
                said = str(exc)
            stopping.wait(_LOOK_SECONDS / 2)
        return False

    def let_go_before(self, stopping: Event) -> None:
        """Give a run that held the lease before us the time to notice, unless it has said that it is over."""
        with translated(self._url):
            saved = fetch_report(self._require(), self._pipeline)
        if saved is not None and saved.report.phase not in (Phase.STOPPED, Phase.FAILED):
            stopping.wait(_GRACE_SECONDS)

    def look(self) -> None:
        """Learn now, rather than within a second, whether the pipeline is paused."""
        with translated(self._url):
            self._is_paused = is_paused(self._require(), self._pipeline)

    def holder(self) -> Holder | None:
        """Who holds the lease, as far as can be told."""
        with translated(self._url):
            found = fetch_sync(self._require(), SQL["find_holder"].bind(Holder, pipeline=self._pipeline))
        return next(iter(found), None)

    def release(self) -> None:
        self._ended.set()
        if self._thread is not None:
            # It is at a statement of a few milliseconds, or at one that hangs, which no one can wait for.
            self._thread.join(_STALE_SECONDS)
        if self._connection is not None and (self._thread is None or not self._thread.is_alive()):
            # The server ends a session a moment after we have hung up, and somebody may want the lease at once.
            with suppress(psycopg.Error):
                execute_sync(self._connection, SQL["release_lease"].bind(str))
            self._connection.close()
        self._connection = self._thread = None

    def _open(self) -> Connection:
        given = conninfo_to_dict(self._url)
        connection = connect_sync(self._url, **{name: value for name, value in _ALIVE.items() if name not in given})
        if is_pooled(connection):
            connection.close()
            raise SettingsError(
                "the state database is reached through a pooler that shares connections, which cannot hold a lock for us; "
                "name the server itself in `state_url`"
            )
        execute_sync(connection, SQL["set_lease_session"].compose())
        return connection

    def _watch(self, connection: Connection, ended: Event) -> None:
        while not ended.wait(_LOOK_SECONDS):
            try:
                failpoints.hit("pipeline.lease_renewal")
                self._is_paused = is_paused(connection, self._pipeline)
                self._looked_at = time.monotonic()
            except psycopg.errors.QueryCanceled:
                # The server is slow, and the session is there.
                continue
            except (psycopg.Error, ConnectionLost) as exc:
                ended.set()
                said, facts = _first_line(exc), {"pipeline": self._pipeline}
                _log.warning("pipeline %s: its session in the state database is lost: %s", self._pipeline, said, extra=facts)

    def _require(self) -> Connection:
        if self._connection is None:
            raise HeadwaterError(f"there is no session for the lease of pipeline {self._pipeline!r}; take it first")
        return self._connection


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
