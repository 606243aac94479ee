"""What tests of the relay share: brokers with queues of a test's own, and relays that are stopped at the end."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.outbox import OutboxRelay, RelaySettings
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.outbox.arrivals import RabbitmqQueue, eventually


@pytest.fixture
def queue(rabbitmq: RabbitmqNode) -> Callable[..., RabbitmqQueue]:
    """Makes a durable queue, classic unless told otherwise."""

    def declare(**arguments: object) -> RabbitmqQueue:
        made = RabbitmqQueue(rabbitmq, f"q-{uuid.uuid4().hex}")
        made.declare({key.replace("_", "-"): value for key, value in arguments.items()})
        return made

    return declare


@pytest.fixture
async def start_relay(outbox_url: str, rabbitmq: RabbitmqNode) -> AsyncIterator[Callable[..., Awaitable[OutboxRelay]]]:
    """Starts relays to RabbitMQ, or to another broker; they are stopped at the end."""
    async with AsyncExitStack() as stack:

        async def started(
            broker: Any = None, url: str | None = None, instance: str | None = None, **settings: Any
        ) -> OutboxRelay:
            relay = OutboxRelay(
                url or outbox_url,
                broker or RabbitmqAccess(url=rabbitmq.url),
                RelaySettings(**settings),
                instance=instance,
            )
            await stack.enter_async_context(relay)
            if broker is None:
                # A start waits 3 seconds for the broker's answer, which on a busy machine takes longer now and then.
                await eventually(lambda: relay.counts.is_broker_up)
            return relay

        yield started


@pytest.fixture
async def client(outbox_url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection of the application."""
    async with await psycopg.AsyncConnection.connect(outbox_url, autocommit=True) as connection:
        yield connection
