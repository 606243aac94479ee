"""The decision on appends in transactions of the application: what each way costs them.

Transactions insert a business row and append one message, 16 at a time, and in a second run work for 5 ms after the append.
`none` appends nothing; `staged` is the product's way, whose rows get their offsets from one that runs beside, and `silent`
the same without the bell, for which PostgreSQL lets one transaction commit at a time; `deferred` gives the offsets when the
transaction is about to commit, under the locks of its partitions, and `locked` at the append, both without the bell.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from benchmarks.report import Bar, Output
from benchmarks.topics import statements
from benchmarks.topics.testbed import SERVER
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import AsyncConnection, connect, connect_sync
from headwater.postgres.statements import execute, execute_sync, fetch
from headwater.topics import Message, Topic, append, create_sync, number, prepare_topics
from headwater.topics.append import encode_messages, frame_messages
from headwater.topics.frame import Framed
from headwater.topics.statements import append_held, hold_partitions

CONCURRENT: Final = 16
WORK_SECONDS: Final = 0.005
_NUMBER_SECONDS: Final = 0.01
_PAYLOAD: Final = b"x" * 100


@dataclass(frozen=True, slots=True)
class Sizes:
    seconds: float = 5.0
    rounds: int = 5


QUICK = Sizes(seconds=0.5, rounds=1)


async def none(connection: AsyncConnection, topic: Topic, message: Message) -> None:
    """No append."""


async def staged(connection: AsyncConnection, topic: Topic, message: Message) -> None:
    await append(connection, topic, [message])


async def silent(connection: AsyncConnection, topic: Topic, message: Message) -> None:
    await append(connection, topic, [message], rings=False)


async def deferred(connection: AsyncConnection, topic: Topic, message: Message) -> None:
    await execute(connection, statements.insert_deferred(topic.id, *_framed(topic, message)))


async def locked(connection: AsyncConnection, topic: Topic, message: Message) -> None:
    partitions, frames = _framed(topic, message)
    await fetch(connection, hold_partitions(topic.id, partitions))
    await fetch(connection, append_held(topic.id, partitions, frames))


Way = Callable[[AsyncConnection, Topic, Message], Awaitable[None]]
WAYS: Final[Mapping[str, Way]] = {"none": none, "staged": staged, "silent": silent, "deferred": deferred, "locked": locked}


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with EmbeddedPostgres(PostgresSettings(config=SERVER)) as server:
        with connect_sync(server.url) as connection:
            prepare_topics(connection)
            execute_sync(connection, statements.create_orders())
            execute_sync(connection, statements.create_deferred())
            made = {count: create_sync(connection, f"of{count}", partitions=count) for count in (1, 4)}
        for count, topic in made.items():
            for work_seconds in (0.0, WORK_SECONDS):
                rates = rates_of(server.url, topic, work_seconds, sizes, output)
                working = "_working" if work_seconds else ""
                for name, found in rates.items():
                    output.figures[f"append_{name}_{count}_partitions{working}_per_s"] = round(found)
    return []


def rates_of(url: str, topic: Topic, work_seconds: float, sizes: Sizes, output: Output) -> dict[str, float]:
    """The median of each way, which take turns."""
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(sizes.rounds):
        for name, way in WAYS.items():
            with output.console.status(f"transactions with appends, {name}"):
                rates[name].append(asyncio.run(rate_of(url, topic, way, work_seconds, sizes.seconds)))
    return {name: statistics.median(found) for name, found in rates.items()}


async def rate_of(url: str, topic: Topic, way: Way, work_seconds: float, seconds: float) -> float:
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(await connect(url)) for _ in range(CONCURRENT + 1)]
        numbering = asyncio.create_task(_number(opened.pop(), topic))
        ends = time.monotonic() + seconds

        async def transact(connection: AsyncConnection, client: int) -> int:
            count = 0
            while time.monotonic() < ends:
                async with connection.transaction():
                    await execute(connection, statements.insert_order(count))
                    await way(connection, topic, Message(_PAYLOAD, f"{client}-{count}"))
                    if work_seconds:
                        await fetch(connection, statements.pause(work_seconds))
                count += 1
            return count

        done = sum(await asyncio.gather(*(transact(connection, place) for place, connection in enumerate(opened))))
        numbering.cancel()
        await asyncio.gather(numbering, return_exceptions=True)
    return done / seconds


async def _number(connection: AsyncConnection, topic: Topic) -> None:
    while True:
        await number(connection, topic)
        await asyncio.sleep(_NUMBER_SECONDS)


def _framed(topic: Topic, message: Message) -> tuple[list[int], list[Framed]]:
    return frame_messages(topic, encode_messages(topic, [message]), 0)
