"""Appending from many tasks at once, without transactions of theirs: what comes while a batch is committed is the next."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from headwater.errors import TopicError
from headwater.model.settings import require_settings
from headwater.topics.append import encode_messages
from headwater.topics.appender import Appender, AppendSession, too_late
from headwater.topics.bell import Bell
from headwater.topics.encoded import Encoded
from headwater.topics.gather import Gathering, Sending
from headwater.topics.message import Message, encode_message
from headwater.topics.places import Placed, Places, join_places
from headwater.topics.produce_settings import ProducerSettings
from headwater.topics.topic import Topic, find
from headwater.topics.upkeep import Upkeep


class Producer:
    """Appends to one topic; open it with `async with`, and send from any number of tasks of that loop.

    What `send` returns is durable. Messages of one key keep the order in which they were sent, and so do those of one caller
    that waits for each. Messages without a key of one batch go to one partition, and those of the next batch to the next.
    """

    def __init__(self, url: str, topic: str, settings: ProducerSettings | None = None) -> None:
        self._url, self._name, self._settings = url, topic, settings or ProducerSettings()
        require_settings(self._settings, ProducerSettings)
        self._gathering = Gathering(self._settings)
        self._is_opened = False
        self._topic: Topic | None = None
        self._bell: Bell | None = None
        self._writers: list[tuple[Appender, asyncio.Task[None]]] = []
        self._upkeep: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._is_opened:
            raise TopicError("a producer is opened once; make another one")
        self._is_opened = True
        session = self._session()
        try:
            async with session.opening() as connection:
                self._topic = await find(connection, self._name)
        except BaseException:
            self._is_opened = False
            await session.close()
            raise
        if self._settings.rings:
            self._bell = Bell(self._url, self._topic.id, self._settings)
        if self._settings.maintain_every is not None:
            upkeep = Upkeep(self._url, self._name, self._settings.maintain_every)
            self._upkeep = asyncio.create_task(upkeep.run(), name=f"upkeep of {self._name}")
        self._start(session, self._topic, 0, self._gathering.take)
        # In one partition two would only wait for each other.
        for place in range(1, min(self._settings.connections, self._topic.partitions)):
            turn = place * self._topic.partitions // self._settings.connections
            self._start(self._session(), self._topic, turn, self._gathering.help)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def send(self, message: Message) -> Placed:
        """Append a message; returns where it stands, when that is durable. What cannot be appended raises TopicError.

        ConnectionLost means that the server was given up, for it could not be reached for long; what was on its way may have
        been appended all the same.
        """
        encoded = Encoded.of_one(encode_message(message, self._opened().max_bytes))
        placed = await (await self._gathering.put(encoded))
        return placed[0]

    async def send_many(self, messages: Sequence[Message]) -> Places:
        """Append messages; if one of them cannot be, none is sent. Those of one partition stand there in their order.

        Returns where they stand, in the order in which they were given.

        More than fits into a batch becomes several, of which the first may be there when a later one fails.
        """
        encoded = encode_messages(self._opened(), messages)
        # They may be gone before they are appended: what waits is what the garbage collector has to look at again and again.
        del messages
        placed = [await (await self._gathering.put(part)) for part in encoded.portions(self._settings.batch_bytes)]
        return join_places(placed)

    async def close(self) -> None:
        """Append what waits, for as long as the settings say; what is left then raises for its senders."""
        self._gathering.close()
        if self._upkeep is not None:
            self._upkeep.cancel()
        await asyncio.gather(*(appender.leave(task) for appender, task in self._writers))
        self._gathering.fail(too_late(self._name))
        if self._bell is not None:
            await self._bell.close()

    def _session(self) -> AppendSession:
        return AppendSession(self._url, "headwater producer", self._settings.answer_within)

    def _start(self, session: AppendSession, topic: Topic, turn: int, take: Callable[[], Awaitable[list[Sending]]]) -> None:
        appender = Appender(session, topic, turn, self._bell, self._settings)
        self._writers.append((appender, asyncio.create_task(appender.run(take), name=f"producer of {self._name}")))

    def _opened(self) -> Topic:
        if self._topic is None:
            raise TopicError("the producer is not open; use it with `async with`")
        return self._topic
