"""A line to a database, which the subscribers of an event loop share: connections, rounds and ears."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from headwater.errors import HeadwaterError
from headwater.postgres.connect import AsyncConnection
from headwater.postgres.statements import Statement
from headwater.topics import statements
from headwater.topics.ear import Ear
from headwater.topics.group_session import GroupSession
from headwater.topics.group_statements import Group
from headwater.topics.rounds import Rounds, closed
from headwater.topics.topic import Topic
from headwater.topics.upkeep import Upkeep

Row = TypeVar("Row")

# A server that does not answer for so long is taken for gone: a network that swallows everything gives no other sign.
_ANSWER_WITHIN: Final = timedelta(seconds=30)
# How long a connection is kept that nobody has used: longer than it takes many members to begin, and to exchange partitions.
_KEPT_SECONDS: Final = 15.0
# For a commit that is under way when it is closed.
_END_SECONDS: Final = 1.0


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
        self._used: set[GroupSession] = set()
        self._unused = asyncio.Event()
        self._unused.set()
        # Not behind a pooler that does not know of prepared statements, as the first connection finds out.
        self._prepares = True
        self._rounds: dict[int, Rounds] = {}
        self._upkeeps: dict[int, asyncio.Task[None]] = {}
        self._numbering: dict[int, asyncio.Task[list[int]]] = {}
        self._ears: dict[int, Ear] = {}
        self._is_closed = False

    async def __aenter__(self) -> Self:
        if self._is_closed:
            raise closed()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """What is under way has a second to come to its end; whoever still uses it then gets TopicError."""
        rounds, ears = list(self._rounds.values()), list(self._ears.values())
        for task in self._upkeeps.values():
            task.cancel()
        try:
            await asyncio.gather(*(one.drain(_END_SECONDS) for one in rounds), *(ear.close() for ear in ears))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._unused.wait(), _END_SECONDS)
        finally:
            self._is_closed = True
            # Who is cancelled would wait for the server once more, which may be out of reach.
            for session in self._used:
                session.end_within(0)
                session.hang_up()
            await asyncio.gather(*(one.close() for one in rounds), *self._upkeeps.values(), return_exceptions=True)
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

    async def number(self, topic: Topic) -> bool:
        """Give offsets to what was appended in transactions, once for all who see that there is something.

        Whether there was, and it was us who did.
        """
        task = self._numbering.get(topic.id)
        if task is None:
            task = self._numbering[topic.id] = asyncio.create_task(self.fetch(statements.number_staged(topic.id)))
            task.add_done_callback(partial(self._numbered, topic.id))
        return (await asyncio.shield(task))[0] > 0

    def _numbered(self, topic_id: int, task: "asyncio.Task[list[int]]") -> None:
        del self._numbering[topic_id]
        # Those who wait for it may be gone, and nobody is blamed for that.
        if not task.cancelled():
            task.exception()

    def look_after(self, topic: Topic, every: timedelta) -> None:
        """See to the segments of a topic from now on, if that is not done already."""
        if topic.id not in self._upkeeps:
            upkeep = Upkeep(self.url, topic.name, every)
            self._upkeeps[topic.id] = asyncio.create_task(upkeep.run(), name=f"upkeep of {topic.name}")

    def ear(self, topic: Topic) -> Ear:
        """That for the bell of a topic, for all who read it on this line."""
        return self._ears.setdefault(topic.id, Ear(self._listen_url, topic.id))

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[GroupSession]:
        if self._is_closed:
            raise closed()
        await self._drop(self._too_old)
        session = self._kept.pop()[0] if self._kept else GroupSession(self.url, _ANSWER_WITHIN, prepares=self._prepares)
        self._used.add(session)
        self._unused.clear()
        try:
            yield session
        except HeadwaterError:
            if session.is_lost:
                # Whatever has cut one has most likely cut the others too.
                await self._drop(time.monotonic())
            self._keep(session)
            raise
        except BaseException:
            # One whose statement was broken off may be in the middle of it.
            await session.close()
            raise
        else:
            self._keep(session)
        finally:
            self._used.discard(session)
            if not self._used:
                self._unused.set()
            await self._drop(self._too_old)

    @property
    def _too_old(self) -> float:
        """The last use of what is not kept any longer."""
        return time.monotonic() - (0.0 if self._is_closed else _KEPT_SECONDS)

    def _keep(self, session: GroupSession) -> None:
        # A pooler is the same for all.
        self._prepares = self._prepares and session.prepares
        self._kept.append((session, time.monotonic()))

    async def _drop(self, before: float) -> None:
        """Close what was not used since a time."""
        while self._kept and self._kept[0][1] <= before:
            await self._kept.pop(0)[0].close()
