"""A connection that is opened when it is used, and again when it was lost; one that gives no answer is hung up."""

import asyncio
import os
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Final, TypeVar

import psycopg

from headwater.errors import ConnectionLost, SourceError, TopicError
from headwater.postgres.connect import AsyncConnection, connect, describe, is_passing
from headwater.postgres.statements import Statement, fetch

Row = TypeVar("Row")

# A deadlock, a lock that was not to be had, a statement that somebody cancelled: the next attempt is a new one.
_PASSING_STATES: Final = ("40", "55P03", "57014")
# How long one is waited for who was hung up, before he is cancelled.
_LEAVE_SECONDS: Final = 0.5
# What our own functions raise, with what is to be done about it.
_OWN_STATES: Final = "HW"


class Session:
    """One connection in autocommit mode, for one task; what does not last is raised as ConnectionLost."""

    def __init__(self, url: str, application_name: str, answer_within: timedelta) -> None:
        self._url, self._name, self._answer_within = url, application_name, answer_within
        self._connection: AsyncConnection | None = None

    async def opened(self) -> AsyncConnection:
        if self._connection is None or self._connection.closed:
            self._connection = await connect(self._url, application_name=self._name)
            # What is prepared belongs to a session, and a pooler gives each transaction another one.
            self._connection.prepare_threshold = None
        return self._connection

    async def fetch(self, statement: Statement[Row]) -> list[Row]:
        connection = await self.opened()
        # A network that swallows everything gives no sign. What hangs up is no task and no cancellation: one who is
        # cancelled would wait for the server once more.
        timer = asyncio.get_running_loop().call_later(self._answer_within.total_seconds(), self.hang_up)
        try:
            return await fetch(connection, statement)
        except psycopg.Error as exc:
            raise await self._translated(exc, connection) from exc
        finally:
            timer.cancel()

    def hang_up(self) -> None:
        """End the connection under one who waits for it, who gets ConnectionLost at once."""
        # To close it here would give its number to another one meanwhile.
        if self._connection is not None and not self._connection.closed:
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _translated(self, error: psycopg.Error, connection: AsyncConnection) -> Exception:
        reason = error.diag.message_primary or (str(error).splitlines() or [type(error).__name__])[0]
        state = error.sqlstate or ""
        if connection.broken:
            await self.close()
        if connection.broken or is_passing(error) or state.startswith(_PASSING_STATES):
            return ConnectionLost(f"PostgreSQL at {describe(self._url)} did not do what was asked of it: {reason}")
        if state.startswith(_OWN_STATES):
            return TopicError(reason)
        return SourceError(
            f"PostgreSQL at {describe(self._url)} refused what was asked of it: {reason}; check the tables of topics and "
            "the rights of this role",
            sqlstate=state,
        )


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
