"""The tables of one pipeline on a connection that is kept, and opened again when it was lost."""

from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import TypeVar

import psycopg

from headwater.capture.statements import commit_locally
from headwater.capture.tables import statements
from headwater.capture.tables.statements import Name, PipelineTable, Progress, Reading, SlotRecord, State
from headwater.model import Lsn
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.migrate import Component, migrate
from headwater.postgres.statements import Statement, execute_sync, fetch_sync

Row = TypeVar("Row")

# A table that could not be read may be by then: somebody has let go of a lock, or granted a right.
_RETRY_AFTER = timedelta(seconds=15)


def prepare_tables(url: str) -> None:
    """Make the tables of this package in a state database."""
    with translated(url), closing(connect_sync(url)) as connection:
        migrate(connection, Component.of("headwater.capture.tables"))


def request_load(connection: Connection, pipeline: str, table: Name, reason: str) -> None:
    """Have a table read as a whole; the pipeline begins with it within seconds, or when it runs again."""
    fetch_sync(connection, statements.request_load(pipeline, table, reason))


class TableStore:
    """What one pipeline knows of its tables."""

    def __init__(self, url: str, pipeline: str) -> None:
        self._url, self._pipeline = url, pipeline
        self._connection: Connection | None = None

    def tables(self) -> list[PipelineTable]:
        return self._fetch(statements.list_tables(self._pipeline))

    def enlist(self, tables: Sequence[Name], state: State, reason: str) -> None:
        """Take tables in that are not known yet."""
        if tables:
            self._execute(statements.enlist(self._pipeline, tables, state, reason))

    def add(self, table: Name) -> None:
        """Have a table published, read as a whole, and followed."""
        self._execute(statements.add_table(self._pipeline, table))

    def remove(self, table: Name) -> None:
        self._execute(statements.remove_table(self._pipeline, table))

    def leave(self, table: Name, reason: str) -> None:
        """Follow a table no more, for a reason other than that the user has taken it out."""
        self._execute(statements.leave_table(self._pipeline, table, reason))

    def request(self, table: Name, reason: str = "asked for") -> None:
        """Have a table read as a whole again."""
        self._execute(statements.request_load(self._pipeline, table, reason))

    def request_all(self, reason: str) -> None:
        self._execute(statements.request_all(self._pipeline, reason))

    def save_progress(self, attempt: str, progress: Sequence[Progress]) -> None:
        self._execute(statements.save_progress(self._pipeline, attempt, progress))

    def save_loaded(self, reading: Reading) -> None:
        self._execute(statements.save_loaded(self._pipeline, reading))

    def slot(self) -> SlotRecord | None:
        return next(iter(self._fetch(statements.find_slot(self._pipeline))), None)

    def save_slot(self, record: SlotRecord) -> None:
        self._execute(statements.save_slot(self._pipeline, record))

    def save_confirmed(self, generation: str, confirmed: Lsn) -> None:
        self._execute(statements.save_confirmed(self._pipeline, generation, confirmed))

    def save_error(self, table: Name, error: str, wait: timedelta = _RETRY_AFTER) -> None:
        """Say why a table could not be read; it is tried again after a while."""
        self._execute(statements.save_error(self._pipeline, table, error, wait))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _fetch(self, statement: Statement[Row]) -> list[Row]:
        with translated(self._url):
            try:
                return fetch_sync(self._opened(), statement)
            except psycopg.OperationalError:
                self.close()
                raise

    def _execute(self, statement: Statement[object]) -> None:
        with translated(self._url):
            try:
                execute_sync(self._opened(), statement)
            except psycopg.OperationalError:
                self.close()
                raise

    def _opened(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect_sync(self._url)
            # A standby that the commits of others wait for must not hold up a reader.
            execute_sync(self._connection, commit_locally())
        return self._connection
