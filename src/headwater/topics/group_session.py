"""The connection of a member of a group, which reads ahead, commits and renews its lease on it."""

import asyncio
from datetime import timedelta
from typing import Final, TypeVar

import psycopg

from headwater.errors import ConnectionLost, LeaseLost
from headwater.postgres.connect import AsyncConnection
from headwater.postgres.statements import Statement
from headwater.topics.session import Session

Row = TypeVar("Row")

# What topic_settle_1 raises.
_EPOCH_PASSED: Final = "HW004"
# A prepared statement is there where there should be none, is not there, or does not fit any more: the session is one of
# many behind a pooler, or the tables have changed.
_UNPREPARED: Final = ("26000", "42P05", "0A000")


class GroupSession(Session):
    """For several tasks, one after the other; rows come in binary form, and so frames as they are.

    Statements are prepared, which spares the planning of each poll. Behind a pooler that does not know of prepared
    statements, the first failure ends that, and is as a lost connection.
    """

    def __init__(self, url: str, answer_within: timedelta) -> None:
        super().__init__(url, "headwater subscriber", answer_within)
        self._opening = asyncio.Lock()
        self._prepares = True

    async def opened(self) -> AsyncConnection:
        async with self._opening:
            connection = await super().opened()
            if self._prepares:
                connection.prepare_threshold = 1
            return connection

    async def fetch(self, statement: Statement[Row]) -> list[Row]:
        return (await self._run(statement))[0]

    async def execute(self, statement: Statement[object]) -> int:
        """How many rows it touched."""
        return (await self._run(statement))[1]

    async def _run(self, statement: Statement[Row]) -> tuple[list[Row], int]:
        async with self._using() as connection, connection.cursor(binary=True, row_factory=statement.row_factory) as cursor:
            await cursor.execute(statement.query, statement.parameters)
            return await cursor.fetchall() if cursor.description else [], cursor.rowcount

    async def _translated(self, error: psycopg.Error, connection: AsyncConnection) -> Exception:
        if (lost := lease_lost(error)) is not None:
            return lost
        if error.sqlstate in _UNPREPARED and self._prepares:
            self._prepares = False
            await self._discard(connection)
            return ConnectionLost("the server does not keep prepared statements; they are not used any more")
        return await super()._translated(error, connection)


def lease_lost(error: psycopg.Error) -> LeaseLost | None:
    """The error for a commit that was refused because of its epoch."""
    if error.sqlstate != _EPOCH_PASSED:
        return None
    return LeaseLost(
        "somebody else reads there by now, or what came before was not committed; nothing moved, and it is given out again"
    )
