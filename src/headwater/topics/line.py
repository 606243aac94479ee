"""A line to a database, which the subscribers of an event loop share: connections, rounds and ears."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import Final, Self, TypeVar

from headwater.errors import ConnectionLost
from headwater.postgres.connect import AsyncConnection
from headwater.postgres.statements import Statement
from headwater.topics.ear import Ear
from headwater.topics.group_session import GroupSession
from headwater.topics.group_statements import Group
from headwater.topics.rounds import Rounds, closed
from headwater.topics.topic import Topic

Row = TypeVar("Row")

# A server that does not answer for so long is taken for gone: a network that swallows everything gives no other sign.
_ANSWER_WITHIN: Final = timedelta(seconds=30)
# How long a connection is kept that nobody has used: members renew their leases, and do other things, now and again.
_KEPT_SECONDS: Final = 60.0


class Line:
    """Opens connections as they are needed: as many as statements are under way at once, which mostly is one.

    Members of a group on one line read and commit together, in one round trip, and one listener wakes all who read a topic.
    Use it in one event loop, for any number of subscribers, and close it after them. `listen_url` is for those whose `url`
    leads to a pooler in transaction mode.
    """

    def __init__(self, url: str, listen_url: str | None = None) -> None:
        self.url, self._listen_url = url, listen_url or url
        # With the time of their last use: what was used last is used next, and the first of them may not be needed any more.
        self._kept: list[tuple[GroupSession, float]] = []
        self._rounds: dict[int, Rounds] = {}
        self._ears: dict[int, Ear] = {}
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def again(self) -> "Line":
        """Another one to the same place."""
        return Line(self.url, self._listen_url)

    async def close(self) -> None:
        """At once; whoever still uses it gets TopicError."""
        self._is_closed = True
        for rounds in self._rounds.values():
            await rounds.close()
        await self._drop(time.monotonic())

    async def fetch(self, statement: Statement[Row]) -> list[Row]:
        async with self._session() as session:
            return await session.fetch(statement)

    async def execute(self, statement: Statement[object]) -> int:
        """How many rows it touched."""
        async with self._session() as session:
            return await session.execute(statement)

    async def insist(self, statement: Statement[Row], within: timedelta, again: Statement[Row] | None = None) -> list[Row]:
        """Run a statement that may be run twice, `again` if it is to be another then, until the server answers."""
        async with self._session() as session:
            return await session.insist(statement, within, again)

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[AsyncConnection]:
        """A connection for the first statements, which find out whether the database has our tables at all."""
        async with self._session() as session, session.opening() as connection:
            yield connection

    def rounds(self, topic: Topic, group: Group) -> Rounds:
        """Those of a group, for all its members on this line."""
        return self._rounds.setdefault(group.id, Rounds(self, topic.id, group.id))

    def ear(self, topic: Topic) -> Ear:
        """That for the bell of a topic, for all who read it on this line."""
        return self._ears.setdefault(topic.id, Ear(self._listen_url, topic.id))

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[GroupSession]:
        if self._is_closed:
            raise closed()
        session = self._kept.pop()[0] if self._kept else GroupSession(self.url, _ANSWER_WITHIN)
        try:
            yield session
        except ConnectionLost:
            # Whatever has cut one has most likely cut the others too.
            await self._drop(time.monotonic())
            raise
        finally:
            now = time.monotonic()
            self._kept.append((session, now))
            await self._drop(now if self._is_closed else now - _KEPT_SECONDS)

    async def _drop(self, before: float) -> None:
        """Close what was not used since a time."""
        while self._kept and self._kept[0][1] <= before:
            await self._kept.pop(0)[0].close()
