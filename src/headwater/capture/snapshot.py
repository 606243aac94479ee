"""Tables seen at one moment that the stream can be joined to: fence, locks, snapshot, and where the WAL was then.

The procedure, in this order, and what is lost without each step: once the changes of the tables are being kept, wait until
every transaction that is older than that has ended, or one that is written and streamed but not yet visible would be
missed. Lock the tables, or a truncate would empty what is yet to be read. Take the snapshot, then the position that bounds
it. Have the WAL flushed past that, or a crash of the server would give ids to others that the snapshot takes for ended.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Event
from typing import Final

import psycopg
from psycopg import sql

from headwater.capture.heartbeat import emit_mark
from headwater.capture.statements import commit_locally
from headwater.errors import SourceError
from headwater.model import Lsn, Snapshot, SnapshotRead
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.statements import Statement, execute_sync, fetch_sync, load

SQL: Final = load("headwater.capture", "sql/snapshot.sql")

# How often to look whether older transactions have ended, and after how long to tell who has not.
_LOOK_SECONDS, _PATIENT_SECONDS = 0.05, 5.0
_LOCK_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class _Taken:
    snapshot: str
    exported: str
    in_recovery: bool
    read_at: datetime


class Stopped(Exception):
    """The wait was ended from outside."""


class OpenSnapshot:
    """A snapshot that readers may import by its `exported` name until it is closed; its tables are locked until then.

    What `connection` reads, it reads at that snapshot. `failed` has the tables that could not be locked, with the reason.
    All transactions whose commit lies before `since` are in it.
    """

    def __init__(
        self, connection: Connection, taken: _Taken, since: Lsn, until: Lsn, failed: dict[tuple[str, str], str]
    ) -> None:
        self.connection, self.since = connection, since
        self.read = SnapshotRead(Snapshot.parse(taken.snapshot), until)
        self.exported, self.read_at, self.failed = taken.exported, taken.read_at, failed

    def close(self) -> None:
        self.connection.close()


def open_snapshot(url: str, tables: Sequence[tuple[str, str]], stopping: Event, tell: Callable[[str], None]) -> OpenSnapshot:
    """Take a snapshot of tables whose changes are kept from now on, at the latest.

    Waits for older transactions without limit, and after a while tells who they are; raises Stopped when it is to end.
    """
    with translated(url), closing(connect_sync(url)) as other:
        execute_sync(other, commit_locally())
        (since,) = fetch_sync(other, SQL["wal_insert_position"].bind(Lsn))
        _pass_fence(other, stopping, tell)
        holder = connect_sync(url)
        try:
            failed = _lock(holder, tables)
            (taken,) = fetch_sync(holder, SQL["take_snapshot"].bind(_Taken))
            if taken.in_recovery:
                raise SourceError("a standby does not know which transactions run; read tables from the primary")
            (until,) = fetch_sync(holder, SQL["wal_insert_position"].bind(Lsn))
            emit_mark(other)
        except BaseException:
            holder.close()
            raise
    return OpenSnapshot(holder, taken, since, until, failed)


def lift_timeouts() -> Statement[str]:
    """For a session that reads for as long as it takes."""
    return SQL["lift_timeouts"].bind(str)


def _pass_fence(connection: Connection, stopping: Event, tell: Callable[[str], None]) -> None:
    """Wait until every transaction that began to write before now has ended."""
    (fence,) = fetch_sync(connection, SQL["fence"].bind(int))
    began, told = time.monotonic(), False
    while fetch_sync(connection, SQL["oldest_running"].bind(int))[0] < fence:
        if stopping.wait(_LOOK_SECONDS):
            raise Stopped
        if not told and time.monotonic() - began > _PATIENT_SECONDS:
            told = True
            blockers = fetch_sync(connection, SQL["list_blockers"].bind(str, fence=fence))
            tell(f"its snapshot waits for older transactions to end: {'; '.join(blockers) or 'unknown'}")


def _lock(connection: Connection, tables: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Begin the transaction, and lock the tables in it; returns those that it could not, with the reason."""
    failed = {}
    fetch_sync(connection, lift_timeouts())
    milliseconds = int(_LOCK_TIMEOUT.total_seconds() * 1000)
    fetch_sync(connection, SQL["limit_locks"].bind(str, milliseconds=milliseconds))
    execute_sync(connection, SQL["begin_reading"].compose())
    for table in tables:
        try:
            with connection.transaction():
                execute_sync(connection, SQL["lock_table"].compose(table=sql.Identifier(*table)))
        except psycopg.errors.LockNotAvailable:
            failed[table] = (
                f"another session has locked it for more than {_LOCK_TIMEOUT.seconds} s (pg_locks tells which); it is tried "
                "again, and its changes are left out until then"
            )
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            failed[table] = "it does not exist any more; create it, or take it out of the pipeline"
        except psycopg.errors.InsufficientPrivilege:
            failed[table] = f"role {connection.info.user} may not read it; run `grant select` on it to that role"
    return failed
