"""A connection of the relay to its database, opened when it is used, and again when it was lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final, TypeVar

import psycopg

from headwater.errors import ConnectionLost
from headwater.outbox import statements
from headwater.postgres.connect import AsyncConnection, connect, describe, is_passing
from headwater.postgres.statements import Statement, execute, fetch

Row = TypeVar("Row")

# A server that does not answer for so long is taken for gone: a network that swallows everything gives no other sign.
ANSWER_WITHIN: Final = timedelta(seconds=30)
# A deadlock, a lock that was not to be had, a statement that somebody cancelled: the next attempt is a new one.
_PASSING_STATES: Final = ("40", "55P03", "57014")


class Session:
    """One connection in autocommit mode, for one task; what does not last is raised as ConnectionLost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: AsyncConnection | None = None

    async def fetch(self, statement: Statement[Row]) -> list[Row]:
        async with self._answering():
            return await fetch(await self._opened(), statement)

    async def execute(self, statement: Statement[object]) -> int:
        async with self._answering():
            return await execute(await self._opened(), statement)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(ANSWER_WITHIN.total_seconds()):
                yield
        except asyncio.CancelledError:
            # What the server still makes of it is not for the next one to hear.
            await self.close()
            raise
        except TimeoutError as exc:
            await self.close()
            raise ConnectionLost(
                f"PostgreSQL at {describe(self._url)} gave no answer within {ANSWER_WITHIN.total_seconds():g} s; check the "
                "server and the network"
            ) from exc
        except psycopg.Error as exc:
            if self._connection is not None and self._connection.broken:
                await self.close()
            if not is_passing(exc) and not (exc.sqlstate or "").startswith(_PASSING_STATES):
                raise
            reason = (str(exc).splitlines() or [type(exc).__name__])[0]
            raise ConnectionLost(f"PostgreSQL at {describe(self._url)} did not do what was asked of it: {reason}") from exc

    async def _opened(self) -> AsyncConnection:
        if self._connection is None or self._connection.closed:
            # Kept before it is used, so that it is closed also by one who gives up meanwhile.
            self._connection = await connect(self._url)
            try:
                await execute(self._connection, statements.prepare_session())
            except BaseException:
                await self.close()
                raise
        return self._connection
