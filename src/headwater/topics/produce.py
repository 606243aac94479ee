"""Appending from many tasks at once, without a transaction of theirs: what comes while one batch is committed is the next.

A batch is one statement, and so one flush of the server's disk, whatever it has and for how many partitions. It has a
number, by which the server knows it: one whose answer was lost is sent again, and is not appended twice.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self
from uuid import uuid4

from headwater.errors import ConnectionLost, TopicError
from headwater.postgres.session import leave
from headwater.postgres.statements import Statement
from headwater.topics import produce_statements
from headwater.topics.append import encode_messages, frame_messages, partition_for
from headwater.topics.bell import Bell
from headwater.topics.gather import Gathering, Placed, fail, settle
from headwater.topics.message import Encoded, Message, encode_message
from headwater.topics.produce_settings import ProducerSettings
from headwater.topics.produce_statements import Appended
from headwater.topics.session import TopicSession
from headwater.topics.topic import Topic, find
from headwater.topics.upkeep import Upkeep


class Producer:
    """Appends to one topic; open it with `async with`, and send from any number of tasks of that loop.

    What `send` returns is durable. Messages of one caller that waits for each keep their order. Messages without a key
    of one batch go to one partition, and those of the next batch to the next.
    """

    def __init__(self, url: str, topic: str, settings: ProducerSettings | None = None) -> None:
        self._url, self._name, self._settings = url, topic, settings or ProducerSettings()
        self._session = TopicSession(url, "headwater producer", self._settings.answer_within)
        self._id, self._sequence = uuid4(), 0
        self._gathering = Gathering(self._settings)
        self._topic: Topic | None = None
        self._bell: Bell | None = None
        self._writer: asyncio.Task[None] | None = None
        self._upkeep: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            async with self._session.opening() as connection:
                self._topic = await find(connection, self._name)
        except BaseException:
            await self._session.close()
            raise
        if self._settings.rings:
            self._bell = Bell(self._url, self._topic.id, self._settings)
        if self._settings.maintain_every is not None:
            upkeep = Upkeep(self._url, self._name, self._settings.maintain_every)
            self._upkeep = asyncio.create_task(upkeep.run(), name=f"upkeep of {self._name}")
        self._writer = asyncio.create_task(self._run(self._topic), name=f"producer of {self._name}")
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
        encoded = encode_message(message, self._opened().max_bytes)
        (placed,) = await (await self._gathering.put([encoded], encoded.size))
        return placed

    async def send_many(self, messages: Sequence[Message]) -> list[Placed]:
        """Append messages; if one of them cannot be, none is sent. Those of one partition stand there in their order.

        More than fits into a batch becomes several, of which the first may be there when a later one fails.
        """
        encoded = encode_messages(self._opened(), messages)
        parts = [await self._gathering.put(*part) for part in _portions(encoded, self._settings.batch_bytes)]
        return [placed for part in parts for placed in await part]

    async def close(self) -> None:
        """Append what waits, for as long as the settings say; what is left then raises for its senders."""
        self._gathering.close()
        if self._upkeep is not None:
            self._upkeep.cancel()
        if self._writer is not None:
            seconds = self._settings.close_within.total_seconds()
            self._session.end_within(seconds)
            await leave(self._writer, self._session, seconds)
            self._gathering.fail(self._too_late())
        if self._bell is not None:
            await self._bell.close()

    def _opened(self) -> Topic:
        if self._topic is None:
            raise TopicError("the producer is not open; use it with `async with`")
        return self._topic

    async def _run(self, topic: Topic) -> None:
        while sendings := await self._gathering.take():
            messages = [message for sending in sendings for message in sending.messages]
            try:
                topic, placed = await self._append(topic, messages)
            except Exception as exc:  # noqa: BLE001 - it is the senders'
                fail(sendings, exc)
                continue
            except asyncio.CancelledError:
                fail(sendings, self._too_late())
                raise
            settle(sendings, placed)

    async def _append(self, topic: Topic, messages: Sequence[Encoded]) -> tuple[Topic, Iterator[Placed]]:
        self._sequence += 1
        unkeyed = self._sequence % topic.partitions
        partitions, frames = frame_messages(topic, messages, unkeyed)
        statement = produce_statements.append_batch(topic.id, partitions, frames, self._id, self._sequence)
        # What was committed before comes first, some of it each time.
        while (appended := await self._insist(statement)).first_offsets is None:
            pass
        if self._bell is not None:
            self._bell.ring(partitions)
        firsts = zip(partitions, appended.first_offsets, strict=True)
        placed = place_messages(firsts, (partition_for(topic, message, unkeyed) for message in messages))
        # Others may have added partitions; from here on the keys lead to them too.
        return replace(topic, partitions=appended.partitions), placed

    async def _insist(self, statement: Statement[Appended]) -> Appended:
        if self._session.has_ended:
            raise self._too_late()
        return (await self._session.insist(statement, self._settings.give_up_after))[0]

    def _too_late(self) -> ConnectionLost:
        return ConnectionLost(f"the producer of topic {self._name!r} was closed before it knew that this was appended")


def place_messages(firsts: Iterable[tuple[int, int]], partitions: Iterable[int]) -> Iterator[Placed]:
    """Where each message stands, by its partition and by the first offset of each frame of a partition, in order. Pure."""
    offsets: dict[int, int] = {}
    for partition, first in firsts:
        # The frames of a batch follow each other.
        offsets.setdefault(partition, first)
    for partition in partitions:
        yield Placed(partition, offsets[partition])
        offsets[partition] += 1


def _portions(messages: Sequence[Encoded], most_bytes: int) -> Iterator[tuple[Sequence[Encoded], int]]:
    """Messages that fit into a batch together, and how many bytes they are."""
    begin, size = 0, 0
    for at, message in enumerate(messages):
        if at > begin and size + message.size > most_bytes:
            yield messages[begin:at], size
            begin, size = at, 0
        size += message.size
    if messages:
        yield messages[begin:], size
