"""Reading rows, at an exported snapshot or as they are, by ADBC into Arrow, on a connection that each process keeps."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa

from headwater.capture.pieces import import_snapshot
from headwater.capture.snapshot import lift_timeouts
from headwater.postgres.connect import complete
from headwater.postgres.replication.stream import SESSION

# The connection is gone, or the server goes down or is short of something: it may be otherwise soon.
_PASSING = ("08", "53", "57")
# Whoever waits to lock a table for himself waits for the snapshot's lock on it, and we would wait behind him for ever: the
# attempt is given up then, and he gets his turn.
_LOCK_MILLISECONDS = 3000
_LOCK_NOT_AVAILABLE = "55P03"
# One batch; small enough to be worked on in memory, large enough to be worth the calls.
_CHUNK_BYTES = 4 * 1024 * 1024


class ReadFailed(Exception):
    """The server's words. `is_passing` if it may be otherwise soon, `is_joined` if the snapshot was still there."""

    def __init__(self, said: str, *, is_passing: bool, is_joined: bool) -> None:
        super().__init__(said)
        self.is_passing, self.is_joined = is_passing, is_joined


def rows_at(url: str, exported: str | None, query: str) -> Iterator[pa.RecordBatch]:
    """The rows of a query as a snapshot sees them, or as they are now; raises ReadFailed.

    No transaction is open when it ends.
    """
    import adbc_driver_manager
    from adbc_driver_postgresql import StatementOptions  # type: ignore[import-untyped] # it has no types

    is_done = is_joined = False
    try:
        with closing(_kept.begin(complete(url)).cursor()) as cursor:
            cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(_CHUNK_BYTES)})
            if exported is not None:
                cursor.executescript(import_snapshot(exported).query.as_string())
            is_joined = True
            cursor.execute(query)
            yield from cursor.fetch_record_batch()
            cursor.executescript("commit")
        is_done = True
    except adbc_driver_manager.Error as exc:
        raise ReadFailed(_said(exc), is_passing=_is_passing(exc), is_joined=is_joined) from exc
    except (OSError, pa.ArrowException) as exc:
        # In the midst of the rows it is Arrow that raises, without the server's code. One that still answers has refused.
        raise ReadFailed(_said(exc), is_passing=not _kept.can_roll_back(), is_joined=True) from exc
    finally:
        if not is_done:
            _kept.close()


class _Kept:
    """The connection of this process to a source. No transaction is open on it between two pieces.

    Connecting takes ADBC longer than some pieces, for it asks for all types there are, and Spark's Python workers serve many
    tasks.
    """

    def __init__(self) -> None:
        self._conninfo = ""
        self._connection: Any = None

    def begin(self, conninfo: str) -> Any:
        """The connection, with a transaction that can take a snapshot over; a kept one may have died meanwhile."""
        import adbc_driver_manager

        if self._connection is not None and self._conninfo == conninfo:
            try:
                return _begun(self._connection)
            except adbc_driver_manager.Error:
                self.close()
        self.close()
        self._conninfo, self._connection = conninfo, _connected(conninfo)
        return _begun(self._connection)

    def can_roll_back(self) -> bool:
        """Whether the server is still there."""
        import adbc_driver_manager

        try:
            with closing(self._connection.cursor()) as cursor:
                cursor.executescript("rollback")
        except adbc_driver_manager.Error:
            return False
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


_kept = _Kept()


def close_kept() -> None:
    """Hang up, if this process has read anything."""
    _kept.close()


def _connected(conninfo: str) -> Any:
    from adbc_driver_postgresql import dbapi

    connection = dbapi.connect(conninfo, autocommit=True)
    with closing(connection.cursor()) as cursor:
        for statement in SESSION:
            cursor.executescript(statement)
        cursor.execute(lift_timeouts().query.as_string())
        cursor.fetchall()
        cursor.executescript(f"set lock_timeout = {_LOCK_MILLISECONDS}")
    return connection


def _begun(connection: Any) -> Any:
    with closing(connection.cursor()) as cursor:
        cursor.executescript("begin transaction isolation level repeatable read, read only")
    return connection


def _is_passing(error: Any) -> bool:
    return not error.sqlstate or error.sqlstate.startswith((*_PASSING, _LOCK_NOT_AVAILABLE))


def _said(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
