"""One side of a comparison: a session whose values have the same text as on the other side, and what is read in it."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg
from psycopg.rows import tuple_row

from headwater.postgres.catalog import Table, list_columns
from headwater.postgres.comparison import statements
from headwater.postgres.comparison.difference import Entry, Key
from headwater.postgres.comparison.layout import Incomparable, Relation
from headwater.postgres.comparison.statements import Moment, TableStatements
from headwater.postgres.connect import Connection, translate
from headwater.postgres.statements import Statement, execute_sync, fetch_sync

Result = TypeVar("Result")

# Rows that travel at a time, and keys that one statement asks for.
_FETCHED_ROWS: Final = 10_000
_ASKED_KEYS: Final = 1_000
# How often one that is not waited for any more is cancelled.
_CANCEL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Side:
    """A connection to the source or the target, `name` says which, that nobody else uses."""

    name: str
    url: str
    connection: Connection

    def prepare(self) -> None:
        """From here on names are looked up along no search path."""
        execute_sync(self.connection, statements.set_session())
        fetch_sync(self.connection, statements.lift_transaction_timeout())

    def begin(self) -> Moment:
        """Take a snapshot; all is read in it until `end`."""
        execute_sync(self.connection, statements.begin_snapshot())
        return fetch_sync(self.connection, statements.read_moment())[0]

    def end(self) -> None:
        execute_sync(self.connection, statements.end_snapshot())

    def relation(self, table: Table) -> Relation:
        return Relation(table, tuple(list_columns(self.connection, [table.oid])))

    def estimate(self, table: Table) -> int:
        """About how many rows it has, as far as the server knows."""
        return fetch_sync(self.connection, statements.estimate_rows(table.oid))[0]

    def digest(self, table: TableStatements) -> dict[int, tuple[int, str]]:
        """Rows and sum of each bucket that has any."""
        return {bucket: (rows, total) for bucket, rows, total in self._fetch(table.digest_rows())}

    def entries(self, table: TableStatements, buckets: Sequence[int]) -> Iterator[Entry]:
        """The rows of some buckets by key. They are sorted when this returns, and fetched as they are taken."""
        cursor = self.connection.cursor(name=f"headwater_{uuid.uuid4().hex}", row_factory=tuple_row)
        with self._explained():
            cursor.execute(table.read_entries(buckets).query)
            first = cursor.fetchmany(_FETCHED_ROWS)
        return self._rest(cursor, first)

    def find(self, table: TableStatements, keys: Sequence[Key]) -> list[Entry]:
        return [entry for some in _portions(keys) for entry in self._fetch(table.find_entries(some))]

    def texts(self, table: TableStatements, keys: Sequence[Key]) -> dict[Key, Sequence[str]]:
        """What the columns of rows hold, by key."""
        return {tuple(key): texts for some in _portions(keys) for key, texts in self._fetch(table.find_texts(some))}

    def _rest(self, cursor: "psycopg.ServerCursor[Any]", fetched: Sequence[Entry]) -> Iterator[Entry]:
        with cursor:
            while fetched:
                yield from fetched
                with self._explained():
                    fetched = cursor.fetchmany(_FETCHED_ROWS)

    def _fetch(self, statement: Statement[None]) -> list[Any]:
        with self._explained(), self.connection.cursor(row_factory=tuple_row) as cursor:
            return cursor.execute(statement.query).fetchall()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What the server refuses is about the table that is read; a connection that is lost ends it all."""
        try:
            yield
        except psycopg.Error as exc:
            if self.connection.broken:
                raise translate(exc, self.url) from exc
            reason = exc.diag.message_primary or type(exc).__name__
            raise Incomparable(f"the {self.name} refused to read it: {reason}; {_remedy(exc)}") from exc


def both(sides: tuple[Side, Side], read: Callable[[Side], Result]) -> tuple[Result, Result]:
    """Read on both sides at once; if one fails, or we are interrupted, the other is not waited for."""
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="compare") as pool:
        futures = [pool.submit(read, side) for side in sides]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            # Again and again: one may not have begun its statement yet, or be between two of them.
            while left := [side for side, future in zip(sides, futures, strict=True) if not future.done()]:
                for side in left:
                    with suppress(psycopg.Error):
                        side.connection.cancel_safe()
                wait(futures, timeout=_CANCEL_SECONDS)
            raise
    source, target = (future.result() for future in futures)
    return source, target


def _portions(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    return (keys[first : first + _ASKED_KEYS] for first in range(0, len(keys), _ASKED_KEYS))


def _remedy(error: psycopg.Error) -> str:
    match error:
        case psycopg.errors.InsufficientPrivilege() if "row-level security" in str(error):
            return "connect as a role that sees all rows, one with bypassrls"
        case psycopg.errors.InsufficientPrivilege():
            return "grant this role select on the table and usage on its schema"
        case psycopg.errors.LockNotAvailable():
            return "somebody holds a lock on it; try again later"
        case psycopg.errors.UndefinedTable() | psycopg.errors.UndefinedColumn():
            return "its definition has changed meanwhile; try again"
        case _:
            return "the server's log has the statement"
