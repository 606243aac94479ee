"""A connection that is opened when it is used, and again when it was lost; one that gives no answer is hung up."""

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final, TypeVar

import psycopg

from headwater.errors import ConnectionLost, HeadwaterError, SchemaError, SourceError
from headwater.postgres.backoff import Backoff
from headwater.postgres.connect import AsyncConnection, Connection, connect, describe, is_passing
from headwater.postgres.latest import is_latest, latest
from headwater.postgres.statements import Statement, fetch

_log = logging.getLogger(__name__)

Row = TypeVar("Row")
T = TypeVar("T")

# A server that restarts is back within seconds, and then nobody should wait for long.
BACKOFF: Final = Backoff(longest=timedelta(seconds=1))
# A deadlock, a lock that was not to be had, a statement that somebody cancelled: the next attempt is a new one.
_PASSING_STATES: Final = ("40", "55P03", "57014")
# How long one is waited for who was hung up, before he is cancelled.
_LEAVE_SECONDS: Final = 0.5
# A prepared statement is there where there should be none, is not there, or does not fit any more: the session is one of
# many behind a pooler, or the tables have changed.
_UNPREPARED: Final = ("26000", "42P05", "0A000")
# What our own functions raise, with what is to be done about it.
_OWN_STATES: Final = "HW"


class Session:
    """One connection in autocommit mode, for one task; what does not last is raised as ConnectionLost.

    What a capability calls its own refusals, and what it says where its tables are missing, is told by those who inherit.
    """

    _tables = "Headwater"
    _own_error: type[HeadwaterError] = SourceError

    def __init__(self, url: str, application_name: str, answer_within: timedelta) -> None:
        self._url, self._name, self._answer_within = url, application_name, answer_within
        self._connection: AsyncConnection | None = None
        # When nothing is asked again any more, by the monotonic clock.
        self._ends_at = float("inf")
        # Whether single statements see the latest, which is the role's or the database's choice; not known before the first.
        self._is_latest: bool | None = None
        self._transaction = asyncio.Lock()

    async def opened(self) -> AsyncConnection:
        if self._connection is None or self._connection.closed:
            self._connection = await connect(self._url, application_name=self._name)
            # What is prepared belongs to a session, and a pooler gives each transaction another one.
            self._connection.prepare_threshold = None
        return self._connection

    async def fetch(self, statement: Statement[Row]) -> list[Row]:
        async with self._using() as connection:
            return await fetch(connection, statement)

    async def insist(self, statement: Statement[Row], within: timedelta, again: Statement[Row] | None = None) -> list[Row]:
        """Run a statement that may be run twice, `again` if it is to be another then, until the server answers."""
        until = time.monotonic() + within.total_seconds()

        def attempt(failures: int) -> Awaitable[list[Row]]:
            return self.fetch(again if failures and again is not None else statement)

        return await persist(attempt, lambda: min(until, self._ends_at), self._name)

    @property
    def is_lost(self) -> bool:
        """Whether it has no connection, and makes one when it is used."""
        return self._connection is None or self._connection.closed

    def end_within(self, seconds: float) -> None:
        """Ask nothing again after that time."""
        self._ends_at = min(self._ends_at, time.monotonic() + seconds)

    @property
    def has_ended(self) -> bool:
        return time.monotonic() >= self._ends_at

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[AsyncConnection]:
        """The connection, for the first statements, which find out whether the database has our tables at all."""
        connection = await self.opened()
        try:
            yield connection
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName) as exc:
            raise self._missing() from exc
        except psycopg.Error as exc:
            raise await self._translated(exc, connection) from exc

    def hang_up(self) -> None:
        """End the connection under one who waits for it, who gets ConnectionLost at once."""
        if self._connection is not None:
            hang_up(self._connection)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[AsyncConnection]:
        connection = await self.opened()
        # A network that swallows everything gives no sign. What hangs up is no task and no cancellation: one who is
        # cancelled would wait for the server once more.
        timer = asyncio.get_running_loop().call_later(self._answer_within.total_seconds(), hang_up, connection)
        try:
            if self._is_latest is None:
                self._is_latest = await is_latest(connection)
            if self._is_latest:
                yield connection
            else:
                # Not for the session: behind a pooler it is not ours.
                async with self._transaction, latest(connection):
                    yield connection
        except psycopg.Error as exc:
            raise await self._translated(exc, connection) from exc
        finally:
            timer.cancel()

    async def _discard(self, connection: AsyncConnection) -> None:
        """Close a connection that is of no use any more; another task may have opened the next one."""
        if self._connection is connection:
            self._connection = None
        await connection.close()

    async def _translated(self, error: psycopg.Error, connection: AsyncConnection) -> Exception:
        reason = error.diag.message_primary or (str(error).splitlines() or [type(error).__name__])[0]
        state = error.sqlstate or ""
        if connection.broken:
            await self._discard(connection)
        if connection.broken or is_passing(error) or state.startswith(_PASSING_STATES):
            return ConnectionLost(f"PostgreSQL at {describe(self._url)} did not do what was asked of it: {reason}")
        if state.startswith(_OWN_STATES):
            return self._own_error(reason)
        return SourceError(
            f"PostgreSQL at {describe(self._url)} refused what was asked of it: {reason}; check the tables of "
            f"{self._tables} and the rights of this role",
            sqlstate=state,
        )

    def _missing(self) -> HeadwaterError:
        return SchemaError(f"this database has no tables of {self._tables}; make them first")


class _Unprepared(ConnectionLost):
    """A statement was not run, since it was to have been prepared and is not."""


class PreparedSession(Session):
    """For several tasks, one after the other; rows come in binary form.

    Statements are prepared, which spares their planning. Behind a pooler that does not know of prepared statements, the
    first failure ends that, and is not noticed otherwise.
    """

    def __init__(self, url: str, application_name: str, answer_within: timedelta) -> None:
        super().__init__(url, application_name, answer_within)
        self._opening = asyncio.Lock()
        self.prepares = True

    async def opened(self) -> AsyncConnection:
        async with self._opening:
            known = self._connection
            connection = await super().opened()
            if self.prepares and connection is not known:
                connection.prepare_threshold = 1
                # psycopg counts names from 0, and behind a pooler those of another client may be in the same session: then
                # this one would run that one's statement, if it takes as many parameters. It has no other way to say so; a
                # release that counts otherwise would ignore it.
                connection._prepared._prepared_idx = random.getrandbits(48)
            return connection

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[AsyncConnection]:
        async with super().opening() as connection:
            # What is run once need not be prepared, and behind a pooler it may fail before anything is known of that.
            threshold, connection.prepare_threshold = connection.prepare_threshold, None
            try:
                yield connection
            finally:
                connection.prepare_threshold = threshold

    async def fetch(self, statement: Statement[Row]) -> list[Row]:
        return (await self._run(statement))[0]

    async def execute(self, statement: Statement[object]) -> int:
        """How many rows it touched."""
        return (await self._run(statement))[1]

    async def _run(self, statement: Statement[Row]) -> tuple[list[Row], int]:
        try:
            return await self._attempt(statement)
        except _Unprepared:
            # Nothing was done.
            return await self._attempt(statement)

    async def _attempt(self, statement: Statement[Row]) -> tuple[list[Row], int]:
        async with self._using() as connection, connection.cursor(binary=True, row_factory=statement.row_factory) as cursor:
            await cursor.execute(statement.query, statement.parameters)
            # What psycopg makes for its own description of the columns takes longer than to look.
            has_rows = cursor.pgresult is not None and cursor.pgresult.nfields > 0
            return await cursor.fetchall() if has_rows else [], cursor.rowcount

    async def _translated(self, error: psycopg.Error, connection: AsyncConnection) -> Exception:
        if error.sqlstate in _UNPREPARED and self.prepares:
            self.prepares = False
            await self._discard(connection)
            return _Unprepared("the server does not keep prepared statements; they are not used any more")
        return await super()._translated(error, connection)


async def persist(attempt: Callable[[int], Awaitable[T]], until: Callable[[], float], name: str) -> T:
    """Try what may be done twice until the server answers, or a time has come; it is told how often it has failed."""
    failures = 0
    while True:
        try:
            return await attempt(failures)
        except ConnectionLost as exc:
            failures += 1
            wait = BACKOFF.after(failures, random.random()).total_seconds()
            if time.monotonic() + wait > until():
                raise
            _log.warning("%s: asked again in %.1f s: %s", name, wait, exc)
        await asyncio.sleep(wait)


def hang_up(connection: AsyncConnection | Connection) -> None:
    """End a connection under one who waits for it: to close it would give its number to another one meanwhile."""
    if not connection.closed:
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)


async def leave(task: "asyncio.Task[None]", session: Session, seconds: float) -> None:
    """Wait for a task that uses a session to end by itself, and end it when the time is over."""
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            session.hang_up()
            await asyncio.wait([task], timeout=_LEAVE_SECONDS)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await session.close()
