"""The connections of those who submit and send e-mails, and the tables that they need."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from headwater.errors import HeadwaterError, SchemaError
from headwater.postgres.connect import AsyncConnection, Connection
from headwater.postgres.migrate import Component, migrate, pending_migrations
from headwater.postgres.session import PreparedSession
from headwater.queue import prepare_queue, require_queue

_COMPONENT: Final = "headwater.comms"


def prepare_comms(connection: Connection) -> None:
    """Make the tables for e-mails, and those of the queue, or bring them to the version of this release."""
    prepare_queue(connection)
    migrate(connection, Component.of(_COMPONENT))


def require_comms(connection: Connection) -> None:
    """Raise SchemaError if the database does not have them."""
    require_queue(connection)
    if pending_migrations(connection, Component.of(_COMPONENT)):
        raise no_comms()


def no_comms() -> SchemaError:
    return SchemaError(
        "this database has no tables for e-mails, or those of an earlier release; run `headwater comms init` first"
    )


class CommsSession(PreparedSession):
    """One connection; what does not last is raised as ConnectionLost."""

    _tables = "e-mails"

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[AsyncConnection]:
        """The connection, for a transaction; one that gives no answer is hung up."""
        async with self.opening() as connection:
            timer = asyncio.get_running_loop().call_later(self._answer_within.total_seconds(), self.hang_up)
            try:
                yield connection
            finally:
                timer.cancel()

    def _missing(self) -> HeadwaterError:
        return no_comms()


class Sessions:
    """A few connections, each for one who needs it alone; one who asks for more waits."""

    def __init__(self, url: str, count: int, answer_within: timedelta) -> None:
        self._all = [CommsSession(url, "headwater comms", answer_within) for _ in range(count)]
        self._free: asyncio.LifoQueue[CommsSession] = asyncio.LifoQueue()
        for session in self._all:
            self._free.put_nowait(session)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[CommsSession]:
        session = await self._free.get()
        try:
            yield session
        finally:
            self._free.put_nowait(session)

    async def close(self) -> None:
        for session in self._all:
            await session.close()
