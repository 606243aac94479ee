"""The third part of the demo: a topic that two groups of two members read, of whom one leaves in the midst.

Messages go in by a producer. Each group must get every one of them once, and those of a key in their order, whoever reads
them.
"""

import asyncio
import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self

from headwater import topics
from headwater.cli.demo.view import View
from headwater.postgres.connect import connect_sync
from headwater.topics import Message, Producer, Subscriber

TOPIC: Final = "headwater_demo_sales"
GROUPS: Final = ("billing", "shipping")
MEMBERS: Final = ("first", "second")
_PARTITIONS: Final = 4
# Before a member leaves, and after it: more before, if it takes longer until every member has had something.
_MESSAGES: Final = 5_000
_KEYS: Final = 200
# Of each call of the producer.
_BATCH: Final = 100
_PAUSE_SECONDS = 0.005
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What a group has got: by member, and what is not as it should be."""

    name: str
    members: dict[str, int]
    lost: int
    repeated: int
    out_of_order: int


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A topic that several groups have read; `seconds` until all of them had everything."""

    appended: int
    groups: list[GroupReport]
    seconds: float

    @property
    def differences(self) -> list[str]:
        return [
            f"group {group.name} of the topic has lost {group.lost:,} of {self.appended:,} messages, got {group.repeated:,} "
            f"twice and {group.out_of_order:,} out of order"
            for group in self.groups
            if group.lost or group.repeated or group.out_of_order
        ]


class _Seen:
    """What the members of a group have committed."""

    def __init__(self) -> None:
        self.numbers: Counter[int] = Counter()
        self.by_member: Counter[str] = Counter()
        self._by_key: defaultdict[str | None, list[int]] = defaultdict(list)

    def add(self, member: str, messages: list[Message]) -> None:
        for message in messages:
            number = int(str(message.json()))
            self.numbers[number] += 1
            self._by_key[message.key].append(number)
        self.by_member[member] += len(messages)

    def report(self, group: str, appended: int) -> GroupReport:
        out_of_order = sum(one > other for own in self._by_key.values() for one, other in pairwise(own))
        repeated = self.numbers.total() - len(self.numbers)
        return GroupReport(group, dict(self.by_member), appended - len(self.numbers), repeated, out_of_order)


class _Reading:
    """The groups at work, for the length of an `async with` block."""

    def __init__(self, url: str) -> None:
        self._url, self._leaving = url, asyncio.Event()
        self.seen = {group: _Seen() for group in GROUPS}
        self._members: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._members = [asyncio.create_task(self._read(group, name)) for group in GROUPS for name in MEMBERS]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for member in self._members:
            member.cancel()
        await asyncio.gather(*self._members, return_exceptions=True)

    @property
    def all_have_read(self) -> bool:
        return all(seen.by_member[name] for seen in self.seen.values() for name in MEMBERS)

    def part(self) -> None:
        """The last member of each group leaves, after its next batch."""
        self._leaving.set()

    async def until_read(self, appended: int) -> None:
        while any(len(seen.numbers) < appended for seen in self.seen.values()):
            self.require_life()
            await asyncio.sleep(_LOOK_SECONDS)

    def require_life(self) -> None:
        """Raise what has ended a member, if anything has."""
        for member in self._members:
            if member.done():
                member.result()

    async def _read(self, group: str, name: str) -> None:
        async with Subscriber(self._url, TOPIC, group=group) as subscriber:
            async for batch in subscriber:
                await batch.commit()
                self.seen[group].add(name, batch.messages)
                if self._leaving.is_set() and name == MEMBERS[-1]:
                    return


def share_topic(url: str, view: View) -> TopicReport:
    """Append, and have two groups read it all."""
    view.step("Reading a topic by two groups of two members")
    with closing(connect_sync(url)) as connection:
        topics.prepare_topics(connection)
        topics.create_sync(connection, TOPIC, partitions=_PARTITIONS)
    return asyncio.run(_share(url, view))


async def _share(url: str, view: View) -> TopicReport:
    began = time.monotonic()
    async with _Reading(url) as reading, Producer(url, TOPIC) as producer:
        appended = 0
        while appended < _MESSAGES or not reading.all_have_read:
            appended += await _append(producer, appended)
            reading.require_life()
        view.step("One member of each group leaves, and the other has its partitions")
        reading.part()
        for _ in range(_MESSAGES // _BATCH):
            appended += await _append(producer, appended)
        await reading.until_read(appended)
    groups = [seen.report(group, appended) for group, seen in reading.seen.items()]
    return TopicReport(appended, groups, time.monotonic() - began)


async def _append(producer: Producer, first: int) -> int:
    await asyncio.sleep(_PAUSE_SECONDS)
    numbers = range(first, first + _BATCH)
    return len(await producer.send_many([Message(number, key=str(number % _KEYS)) for number in numbers]))
