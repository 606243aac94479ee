"""Members of groups for tests: quick ones, their batches one at a time, and their sudden end."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar

from headwater.topics import Batch, Line, Message, Subscriber, SubscriberSettings
from headwater.topics.owned import Owned
from headwater.topics.shared import Shared

T = TypeVar("T")


def quick(**changes) -> SubscriberSettings:
    """Settings with which nothing takes long."""
    chosen = {"lease": timedelta(seconds=30), "poll_longest": timedelta(milliseconds=20), **changes}
    return SubscriberSettings(**chosen)


class Reading:
    """A member that is there, and its batches one by one."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self._batches = aiter(subscriber)

    @property
    def reader(self) -> Owned | Shared:
        reader = self.subscriber._reader
        assert isinstance(reader, Owned | Shared)
        return reader

    @property
    def member(self) -> object:
        return self.reader._member.id

    async def next(self) -> Batch:
        return await anext(self._batches)

    async def has_nothing(self, seconds: float = 0.1) -> bool:
        """Whether no batch comes within some polls."""
        task = asyncio.create_task(self.next())
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._batches = aiter(self.subscriber)
            return True
        task.result()
        return False

    async def collect(self, count: int, *, commits: bool = True) -> list[Message]:
        """So many messages, or more if the last batch has them."""
        found: list[Message] = []
        while len(found) < count:
            batch = await self.next()
            found += batch.messages
            if commits:
                await batch.commit()
        return found

    async def vanish(self) -> None:
        """End as one who is killed does: without a word to the others."""

        async def say_nothing() -> None:
            pass

        vars(self.subscriber._reader)["leave"] = say_nothing
        await self.subscriber.close()


@asynccontextmanager
async def reading(
    url: str | Line, topic: str, group: str, settings: SubscriberSettings | None = None
) -> AsyncIterator[Reading]:
    async with Subscriber(url, topic, group, settings or quick()) as subscriber:
        yield Reading(subscriber)


@asynccontextmanager
async def running(subscriber: Subscriber, handler: Callable[[Batch], Awaitable[object]]) -> AsyncIterator[None]:
    """A subscriber that gives batches to a handler meanwhile."""
    task = asyncio.create_task(subscriber.run(handler))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(probe: Callable[..., T | None], *, seconds: float = 15) -> T:
    """The first true answer of `probe`, while others in the loop go on; fails when none comes in time.

    It is called without arguments, and may have some with defaults: so a lambda binds the variable of a loop.
    """
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        assert time.monotonic() < deadline, f"still {answer!r} after {seconds} seconds"
        await asyncio.sleep(0.01)
    return answer


def numbers(messages: Iterable[Message]) -> list[int]:
    """The payloads, which are numbers."""
    return [number_of(message) for message in messages]


def number_of(message: Message) -> int:
    number = message.json()
    assert isinstance(number, int)
    return number


def owners(connection, group: str = "billing") -> dict[int, object]:
    """Who has which partition."""
    return dict(
        connection.execute(
            "select partition, member from headwater.topic_lag where group_name = %s order by partition", [group]
        ).fetchall()
    )
