"""A connection of the relay to its database, opened when it is used, and again when it was lost."""

import asyncio
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar

import psycopg

from headwater.errors import ConnectionLost, SourceError
from headwater.outbox import statements
from headwater.outbox.relay.database import Database
from headwater.outbox.served import require_served
from headwater.postgres.connect import AsyncConnection, connect, describe, is_passing
from headwater.postgres.statements import Statement, execute, fetch

T = TypeVar("T")
Row = TypeVar("Row")

# A server that does not answer for so long is taken for gone: a network that swallows everything gives no other sign.
ANSWER_WITHIN: Final = timedelta(seconds=30)
# How long a statement is called off for before its connection is dropped: psycopg has more patience than one who stops.
GIVE_UP_WITHIN: Final = timedelta(milliseconds=200)
# A deadlock, a lock that was not to be had, a statement that somebody cancelled: the next attempt is a new one.
_PASSING_STATES: Final = ("40", "55P03", "57014")


class Session:
    """One connection in autocommit mode, for one task; what does not last is raised as ConnectionLost, and said."""

    def __init__(self, url: str, database: Database) -> None:
        self._url, self._database = url, database
        self._connection: AsyncConnection | None = None
        # Who waits for statements that were given up and have not heard of it yet.
        self._left: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect, unless that is done: for one who has no question now, and was let down by the last one."""
        await self._answered(self._opened())

    async def fetch(self, statement: Statement[Row]) -> list[Row]:
        return await self._answered(self._fetch(statement))

    async def execute(self, statement: Statement[object]) -> int:
        return await self._answered(self._execute(statement))

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _fetch(self, statement: Statement[Row]) -> list[Row]:
        return await fetch(await self._opened(), statement)

    async def _execute(self, statement: Statement[object]) -> int:
        return await execute(await self._opened(), statement)

    async def _answered(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task], timeout=ANSWER_WITHIN.total_seconds())
        except asyncio.CancelledError:
            await self._give_up(task)
            raise
        if not task.done():
            await self._give_up(task)
            silent = self._silent()
            self._database.lost(silent, self)
            raise silent
        try:
            answer = task.result()
        except SourceError as exc:
            self._database.lost(exc, self)
            raise
        except psycopg.Error as exc:
            is_broken = self._connection is not None and self._connection.broken
            if is_broken:
                await self.close()
            if not is_passing(exc) and not (exc.sqlstate or "").startswith(_PASSING_STATES):
                raise
            lost = self._undone(exc)
            # A connection may have broken long ago: whether the server is there now is told by the next one.
            if not is_broken:
                self._database.lost(lost, self)
            raise lost from exc
        self._database.found(self)
        return answer

    def _undone(self, error: psycopg.Error) -> ConnectionLost:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return ConnectionLost(f"PostgreSQL at {describe(self._url)} did not do what was asked of it: {reason}")

    def _silent(self) -> ConnectionLost:
        return ConnectionLost(
            f"PostgreSQL at {describe(self._url)} gave no answer within {ANSWER_WITHIN.total_seconds():g} s; check the "
            "server and the network"
        )

    async def _give_up(self, task: "asyncio.Task[Any]") -> None:
        """Call off a statement; what the server still makes of it is not for the next one to hear."""
        task.cancel()
        await asyncio.wait([task], timeout=GIVE_UP_WITHIN.total_seconds())
        connection, self._connection = self._connection, None
        if connection is not None and not task.done():
            _hang_up(connection)
        leaving = asyncio.create_task(_see_off(task, connection))
        if task.done():
            await leaving
        else:
            self._left.add(leaving)
            leaving.add_done_callback(self._left.discard)

    async def _opened(self) -> AsyncConnection:
        if self._connection is None or self._connection.closed:
            # Kept before it is used, so that it is closed also by one who gives up meanwhile.
            connection = self._connection = await connect(self._url)
            try:
                await execute(connection, statements.prepare_session())
                await require_served(connection)
                (self._database.identity,) = await fetch(connection, statements.identify_database())
            except BaseException:
                await connection.close()
                raise
        return self._connection


def _hang_up(connection: AsyncConnection) -> None:
    """End a connection under one who waits for it: to close it would give its number to another one meanwhile."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


async def _see_off(task: "asyncio.Task[Any]", connection: AsyncConnection | None) -> None:
    try:
        await asyncio.gather(task, return_exceptions=True)
    finally:
        if connection is not None:
            await connection.close()
