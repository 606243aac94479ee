"""What is compared: each writes a business row and an event in one transaction, and says when all events are done with."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Protocol
from unittest.mock import patch

from benchmarks.outbox_relay import statements
from benchmarks.outbox_relay.reference_relay import ReferenceSettings, referring
from benchmarks.outbox_relay.testbed import NAME, TOPIC, TYPE, Place, Testbed, payload_of, text_of
from headwater.brokers.base import Broker, Offered, Published
from headwater.brokers.registry import BrokerAccess, open_broker
from headwater.model import Messages
from headwater.outbox.relay import OutboxRelay
from headwater.postgres.connect import AsyncConnection, connect
from headwater.postgres.statements import execute, fetch

_LOOK_SECONDS = 0.005


class Arm(Protocol):
    async def write(self, connection: AsyncConnection, number: int, type: str = TYPE) -> str:
        """A business row and its event, in one transaction; the id of the event."""

    async def finish(self, events: int) -> None:
        """Return when so many events are confirmed by the broker, and that is durable in the table."""


Arms = Callable[[Testbed, Place], AbstractAsyncContextManager[Arm]]


class HeadwaterArm:
    """The relay inside of the application."""

    def __init__(self, relay: OutboxRelay, reader: AsyncConnection) -> None:
        self._relay, self._reader = relay, reader

    async def write(self, connection: AsyncConnection, number: int, type: str = TYPE) -> str:
        async with self._relay.transaction(connection) as transaction:
            await execute(connection, statements.insert_entity(number, NAME))
            return str(await transaction.publish(TOPIC, type, payload_of(number)))

    async def finish(self, events: int) -> None:
        (is_pending,) = await fetch(self._reader, statements.has_pending())
        while is_pending:
            await asyncio.sleep(_LOOK_SECONDS)
            (is_pending,) = await fetch(self._reader, statements.has_pending())
        assert self._relay.counts.published >= events, "not all events went through this relay"


class WritersAlone:
    """The same rows, which nobody relays."""

    async def write(self, connection: AsyncConnection, number: int, type: str = TYPE) -> str:
        async with connection.transaction():
            await execute(connection, statements.insert_entity(number, NAME))
            await execute(connection, statements.insert_bare_event(TOPIC, type, text_of(number)))
        return ""

    async def finish(self, events: int) -> None:
        """Nothing is to be done."""


@asynccontextmanager
async def ours(testbed: Testbed, place: Place) -> AsyncIterator[HeadwaterArm]:
    reader = await connect(testbed.url)
    async with reader, OutboxRelay(testbed.url, place.messages) as relay:
        yield HeadwaterArm(relay, reader)


@asynccontextmanager
async def writers_alone(testbed: Testbed, place: Place) -> AsyncIterator[WritersAlone]:
    yield WritersAlone()


def reference(settings: ReferenceSettings) -> Arms:
    return lambda testbed, place: referring(testbed.url, place, settings)


class Watched:
    """A broker of whose confirms the time is noted, by the id of the message."""

    def __init__(self, broker: Broker, confirmed: dict[str, float]) -> None:
        self._broker, self._confirmed = broker, confirmed

    def publish(self, messages: Messages) -> Published:
        return self._broker.publish(messages)

    def offer(self, messages: Messages) -> Offered:
        offered = self._broker.offer(messages)
        now, missing = time.monotonic(), {one.index for one in offered.refused} | {one.index for one in offered.left}
        for place, id in enumerate(messages.column("id").to_pylist()):
            if place not in missing:
                self._confirmed[id] = now
        return offered

    def check(self) -> None:
        self._broker.check()

    def close(self) -> None:
        self._broker.close()


@contextmanager
def watched(confirmed: dict[str, float]) -> Iterator[None]:
    """Meanwhile the confirms of all relays of ours are noted."""

    def opened(access: BrokerAccess) -> Broker:
        return Watched(open_broker(access), confirmed)

    with patch("headwater.outbox.relay.relay.open_broker", opened):
        yield


@asynccontextmanager
async def connections(url: str, count: int) -> AsyncIterator[Sequence[AsyncConnection]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(await connect(url)) for _ in range(count)]


async def in_parallel(work: Callable[[AsyncConnection], Awaitable[None]], opened: Sequence[AsyncConnection]) -> None:
    """The same work on each connection, at the same time."""
    async with asyncio.TaskGroup() as group:
        for connection in opened:
            group.create_task(_awaited(work(connection)))


async def _awaited(work: Awaitable[None]) -> None:
    await work
