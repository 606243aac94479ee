"""A log applied to its table, inside the caller's transaction: compacted, and in ever smaller parts where it is refused.

A part that the target takes as a whole is written in a few statements. One that it refuses, because of a value, a
constraint, or rows that trade places under a second unique key, is undone and tried as two halves, one after the other. So
all that can be applied is, in order, and what is left over is single changes with the server's reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import psycopg
import pyarrow as pa

from headwater.postgres.connect import Connection
from headwater.postgres.statements import Statement, execute_sync
from headwater.spark.sinks.postgres.compact import Irregular, Rows, barriers, compact
from headwater.spark.sinks.postgres.copy_text import copy_text
from headwater.spark.sinks.postgres.log import Log
from headwater.spark.sinks.postgres.statements import TableStatements

# Data exceptions and violated constraints: it is the row that is wrong.
_ROW_IS_WRONG = ("22", "23")
# What COPY is not made for.
_NOT_SUPPORTED = "0A"
# Fewer new rows than this go the way of the others, where there are others: that costs less than a COPY of their own.
_WORTH_A_COPY = 200
# Who may not truncate a table, or has foreign keys on it, may still delete from it.
_NO_TRUNCATE = (psycopg.errors.FeatureNotSupported, psycopg.errors.InsufficientPrivilege)
_MISSING = "the target does not have the row, and the source did not send all of its columns"


class Refused(Exception):
    """Rows that cannot be applied; `sqlstate` is the server's, if it was the server who said so."""

    def __init__(self, reason: str, sqlstate: str = "") -> None:
        super().__init__(reason)
        self.reason, self.sqlstate = reason, sqlstate


class Halted(Exception):
    """Something was refused, and there is no savepoint to go back to."""


class Watcher(Protocol):
    """Who hears of what becomes of changes."""

    def before(self, log: Log) -> None:
        """These are about to be written together; may raise Refused."""

    def after(self, log: Log) -> None:
        """These were written."""

    def refuse(self, log: Log, refused: Refused) -> None:
        """This one, alone in its log, cannot be written."""


@dataclass(slots=True)
class Staging:
    """The staging table of one table on one connection; `is_used` if it may hold rows that were merged already."""

    statements: TableStatements
    is_used: bool = False


@dataclass(frozen=True, slots=True)
class TableWriter:
    """Applies logs to one table.

    Unless it `is_careful` it makes no savepoints, which is quicker, and raises Halted when anything is refused: the caller's
    transaction is void then.
    """

    connection: Connection
    staging: Staging
    watcher: Watcher
    is_careful: bool

    def apply(self, log: Log) -> None:
        """Write all changes of the log that the target takes."""
        start = 0
        for barrier in barriers(log).tolist():
            self._attempt(log[start:barrier], direct=True)
            self._attempt(log[barrier : barrier + 1], direct=False)
            start = barrier + 1
        self._attempt(log[start:], direct=True)

    def _attempt(self, log: Log, *, direct: bool) -> None:
        """`direct`: copy rows that are new straight into the table, which fails if one is there after all."""
        if not len(log):
            return
        if not self.is_careful:
            self._write_boldly(log, direct=direct)
            return
        try:
            with self.connection.transaction():
                self._write(log, direct=direct)
        except Irregular:
            self._split(log, Refused(_MISSING))
        except Refused as refused:
            self._split(log, refused)
        except psycopg.Error as exc:
            state = exc.sqlstate or ""
            if direct and state.startswith((*_ROW_IS_WRONG, _NOT_SUPPORTED)):
                self._attempt(log, direct=False)
            elif state.startswith(_ROW_IS_WRONG):
                self._split(log, Refused(reason_of(exc), state))
            else:
                raise

    def _write_boldly(self, log: Log, *, direct: bool) -> None:
        try:
            self._write(log, direct=direct)
        except (Irregular, Refused) as exc:
            raise Halted from exc
        except psycopg.Error as exc:
            if (exc.sqlstate or "").startswith((*_ROW_IS_WRONG, _NOT_SUPPORTED)):
                raise Halted from exc
            raise

    def _split(self, log: Log, refused: Refused) -> None:
        half = len(log) // 2
        if half:
            self._attempt(log[:half], direct=False)
            self._attempt(log[half:], direct=False)
            return
        if log.moved[0] and not log.kept[0]:
            # The row is not under its old key any more, whether or not the new one is taken.
            with self.connection.transaction():
                self._merge(log, log.old, [])
        self.watcher.refuse(log, refused)

    def _write(self, log: Log, *, direct: bool) -> None:
        self.watcher.before(log)
        if log.moved[0] and log.kept[0]:
            self._move(log)
        else:
            self._write_compacted(log, direct=direct)
        self.watcher.after(log)

    def _write_compacted(self, log: Log, *, direct: bool) -> None:
        work = compact(log)
        if work.truncate:
            self._truncate()
        is_mixed = len(work.deleted) + len(work.upserted) > 0
        direct = not log.key or (direct and (len(work.fresh) >= _WORTH_A_COPY or not is_mixed))
        self._merge(log, work.deleted.columns, [work.upserted] if direct else [work.upserted, work.fresh])
        if direct and len(work.fresh):
            self._copy(self.staging.statements.copy_target, work.fresh.columns)

    def _merge(self, log: Log, deleted: Sequence[pa.Array], parts: Sequence[Rows]) -> None:
        """Delete rows, given by their key or all their columns, and write others."""
        statements, has_kept = self.staging.statements, any(rows.kept is not None for rows in parts)
        staged = sum(map(len, parts))
        self._stage(log, deleted, parts)
        if len(deleted[0]):
            execute_sync(self.connection, statements.delete_rows)
        if staged:
            merged = execute_sync(self.connection, statements.merge_kept_rows if has_kept else statements.merge_rows)
            if has_kept and merged < staged:
                raise Refused(_MISSING)

    def _move(self, log: Log) -> None:
        """Give a row another key, and leave alone what was not sent of it."""
        kept = ",".join(str(number + 1) for number, mask in log.unchanged.items() if mask[0])
        self._stage(log, log.old, [Rows(log.values, np.zeros(1, np.int64), pa.array([f"{{{kept}}}"]))])
        if not execute_sync(self.connection, self.staging.statements.move_row):
            raise Refused(_MISSING)

    def _truncate(self) -> None:
        statements = self.staging.statements
        try:
            with self.connection.transaction():
                execute_sync(self.connection, statements.truncate)
        except _NO_TRUNCATE:
            execute_sync(self.connection, statements.delete_all)

    def _stage(self, log: Log, deleted: Sequence[pa.Array], parts: Sequence[Rows]) -> None:
        """Put rows that go, and rows that are to be written, into the staging table, and nothing else."""
        gone, written = len(deleted[0]), sum(map(len, parts))
        if not gone and not written:
            return
        if self.staging.is_used:
            execute_sync(self.connection, self.staging.statements.clear_staging)
        self.staging.is_used = True
        found = dict(zip(log.key or range(len(log.columns)), deleted, strict=True))
        nothing = pa.nulls(gone, pa.string())
        columns = [
            pa.concat_arrays([found.get(number, nothing), *(rows.columns[number] for rows in parts)])
            for number in range(len(log.columns))
        ]
        kept = pa.concat_arrays([nothing, *(_or_nulls(rows.kept, len(rows)) for rows in parts)])
        marks = pa.concat_arrays([pa.repeat("t", gone), pa.repeat("f", written)])
        self._copy(self.staging.statements.copy_staging, [*columns, kept, marks])

    def _copy(self, statement: Statement[None], columns: Sequence[pa.Array | str]) -> None:
        with self.connection.cursor() as cursor, cursor.copy(statement.query) as copy:
            for piece in copy_text(columns):
                copy.write(piece)


def _or_nulls(column: pa.Array | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if column is None else column


def reason_of(error: psycopg.Error) -> str:
    """What the server said, in one line; its detail, which may hold the row, is left out."""
    column = f" (column {error.diag.column_name})" if error.diag.column_name else ""
    return f"{error.diag.message_primary or type(error).__name__}{column} [{error.sqlstate}]"
