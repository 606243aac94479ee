"""One connection of a producer, which appends one batch after the other.

A batch is one statement, and so one flush of the server's disk, whatever it has and for how many partitions. It has a
number, by which the server knows it: one whose answer was lost is sent again, and is not appended twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import uuid4

from headwater import failpoints
from headwater.errors import ConnectionLost
from headwater.postgres.session import PreparedSession, leave
from headwater.postgres.statements import Statement
from headwater.topics import produce_statements
from headwater.topics.append import frame_messages, partitions_for
from headwater.topics.bell import Bell
from headwater.topics.encoded import Encoded
from headwater.topics.gather import Sending, fail, settle
from headwater.topics.places import Places, place_messages
from headwater.topics.produce_settings import ProducerSettings
from headwater.topics.produce_statements import Appended
from headwater.topics.session import TopicSession
from headwater.topics.topic import Topic


class AppendSession(TopicSession, PreparedSession):
    """To plan an append anew each time, the server would copy the frames several times over."""


class Appender:
    """Has an id of its own, so that its batches have an order that others do not disturb.

    Messages without a key of one batch go to one partition, and those of the next batch to the next; the first is by `turn`.
    """

    def __init__(
        self, session: AppendSession, topic: Topic, turn: int, bell: Bell | None, settings: ProducerSettings
    ) -> None:
        self._session, self._topic, self._turn, self._bell, self._settings = session, topic, turn, bell, settings
        self._id, self._sequence = uuid4(), 0

    async def run(self, take: Callable[[], Awaitable[list[Sending]]]) -> None:
        """Append what is taken, until nothing is; those who sent it are told."""
        while sendings := await take():
            try:
                placed = await self._append(Encoded.joined([sending.messages for sending in sendings]))
            except Exception as exc:  # noqa: BLE001 - it is the senders'
                fail(sendings, exc)
                continue
            except asyncio.CancelledError:
                fail(sendings, too_late(self._topic.name))
                raise
            settle(sendings, placed)

    async def leave(self, task: "asyncio.Task[None]") -> None:
        """Have a task that runs it come to its end, for as long as the settings say."""
        seconds = self._settings.close_within.total_seconds()
        self._session.end_within(seconds)
        await leave(task, self._session, seconds)

    async def _append(self, messages: Encoded) -> Places:
        self._sequence += 1
        topic, unkeyed = self._topic, (self._turn + self._sequence) % self._topic.partitions
        partitions, frames = frame_messages(topic, messages, unkeyed)
        statement = produce_statements.append_batch(topic.id, partitions, frames, self._id, self._sequence)
        # What was committed before comes first, some of it each time.
        while (appended := await self._insist(statement)).first_offsets is None:
            pass
        failpoints.hit("topics.appended")
        if self._bell is not None:
            self._bell.ring(partitions)
        # Others may have added partitions; from here on the keys lead to them too.
        self._topic = replace(topic, partitions=appended.partitions)
        firsts = list(zip(partitions, appended.first_offsets, strict=True))
        return place_messages(firsts, partitions_for(topic, messages, unkeyed))

    async def _insist(self, statement: Statement[Appended]) -> Appended:
        if self._session.has_ended:
            raise too_late(self._topic.name)
        return (await self._session.insist(statement, self._settings.give_up_after))[0]


def too_late(topic: str) -> ConnectionLost:
    return ConnectionLost(f"the producer of topic {topic!r} was closed before it knew that this was appended")
