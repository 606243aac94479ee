"""Reading a topic as a member of a group, which moves past what was printed."""

import asyncio
from collections.abc import AsyncIterator
from threading import Event
from typing import Final

from headwater.cli.topics.printer import Printer
from headwater.errors import TopicError
from headwater.postgres.connect import Connection
from headwater.postgres.statements import fetch_sync
from headwater.topics import Batch, Subscriber, SubscriberSettings, Topic, number_sync
from headwater.topics.operate import list_groups_sync, read_lag_sync
from headwater.topics.statements import read_bounds
from headwater.topics.subscribe_settings import Start

# How soon a signal is heard, and the end of what there is noticed.
_LOOK_SECONDS: Final = 0.1


class Membership:
    """A member of a group that prints what it gets; the connection is for looking how far the group is."""

    def __init__(self, connection: Connection, url: str, topic: Topic, group: str) -> None:
        self._connection, self._url, self._topic, self._group = connection, url, topic, group
        if any(one.is_paused for one in list_groups_sync(connection, topic.name) if one.name == group):
            raise TopicError(
                f"group {group} of topic {topic.name} is paused; run `headwater topics resume {topic.name} {group}` first"
            )
        number_sync(connection, topic)
        self._ends = {one.partition: one.next_offset for one in fetch_sync(connection, read_bounds(topic.id))}

    def run(self, start: Start, printer: Printer, stopping: Event, *, follows: bool) -> None:
        """Print until told to stop, enough is printed, or, unless it follows, the group is past what was there."""
        # A batch is committed as a whole, and must not have more than is wanted.
        settings = (
            SubscriberSettings(start=start) if printer.left is None else SubscriberSettings(start=start, max_messages=1)
        )
        asyncio.run(self._run(settings, printer, stopping, follows=follows))

    async def _run(self, settings: SubscriberSettings, printer: Printer, stopping: Event, *, follows: bool) -> None:
        async with Subscriber(self._url, self._topic.name, group=self._group, settings=settings) as subscriber:
            batches = aiter(subscriber)
            following = asyncio.ensure_future(_following(batches))
            try:
                while not stopping.is_set() and printer.left != 0:
                    done, _ = await asyncio.wait([following], timeout=_LOOK_SECONDS)
                    if done:
                        batch = following.result()
                        printer.print(batch.messages)
                        await batch.commit()
                        following = asyncio.ensure_future(_following(batches))
                    elif not follows and self._is_past():
                        return
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    def _is_past(self) -> bool:
        """Whether the group, whoever of it, has dealt with what was there at the beginning."""
        found = {one.partition: one for one in read_lag_sync(self._connection, self._topic.name, self._group)}
        return all(
            found[partition].next_offset >= end and not found[partition].claimed for partition, end in self._ends.items()
        )


async def _following(batches: AsyncIterator[Batch]) -> Batch:
    return await anext(batches)
