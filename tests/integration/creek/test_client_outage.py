"""The client while its server is killed, comes back, or loses what was read: nothing lost, nothing twice, clear errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import TypeVar

import pytest
from nats.js.api import StreamConfig

from headwater import creek
from headwater.brokers.nats.access import NatsAccess
from headwater.creek.names import Kind
from headwater.embedded import EmbeddedNats, NatsSettings
from headwater.errors import BrokerError, BrokerUnavailable, PositionError
from tests.support.creek.fastavro_producer import Producer, first, producer
from tests.support.servers.embedded import shared_root

T = TypeVar("T")

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def server() -> Iterator[EmbeddedNats]:
    """One that may be killed."""
    with EmbeddedNats(NatsSettings(root=shared_root(), is_synced=True)) as started:
        yield started


@pytest.fixture
async def shop(server) -> AsyncIterator[Producer]:
    async with producer(server.url) as made:
        await made.publish_schema()
        yield made


@pytest.fixture
async def client(server, shop) -> AsyncIterator[creek.Client]:
    # Shorter than the outages below, so that they are longer than what the reader itself waits for.
    access = NatsAccess(url=server.url, timeout=timedelta(seconds=1))
    async with creek.connect(access, shop.names.root) as connected:
        yield connected


async def test_a_killed_server_that_comes_back_costs_nothing_and_repeats_nothing(server, shop, client):
    await shop.changes(1, 50)
    async with client.stream_wal("shop", "public.orders") as stream:
        found = await first(stream, 20)
        for last in (100, 150):
            server.kill()
            waiting = asyncio.create_task(first(stream, 50, seconds=40))
            # It has read on to what had arrived, and then finds nobody for longer than its own time limit.
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(waiting), 1.5)
            server.start()
            await shop.settle()
            await shop.changes(last - 49, last)
            found += await waiting
        found += await first(stream, 30)
    assert [message.after["id"] for message in found] == [*range(1, 151)]
    assert [message.position for message in found] == [*range(1, 151)]


async def test_requests_work_again_after_an_outage(server, shop, client):
    newest = await client.get_last_schema("shop", "public.orders")
    server.kill()
    with pytest.raises(BrokerUnavailable):
        await client.get_last_schema("shop", "public.orders")
    server.start()
    async with asyncio.timeout(20):
        assert await patiently(lambda: client.get_last_schema("shop", "public.orders")) == newest


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer, however often the server does not answer before."""
    while True:
        try:
            return await ask()
        except BrokerUnavailable:
            continue


async def test_a_snapshot_is_read_on_across_an_outage(server, shop, client):
    rows = [{"id": number, "data": "x" * 100} for number in range(200)]
    topic = await shop.snapshot(rows[:100], end=None)
    reader = await client.get_snapshot(topic, patience=timedelta(seconds=30))
    found = await first(reader, 100)
    server.kill()
    server.start()
    await shop.settle()
    for row in rows[100:]:
        await shop.publish_row(topic, row)
    await shop.publish(topic, b"EOF")
    found += [row async for row in reader]
    assert found == rows


async def test_a_stream_that_is_deleted_while_it_is_read_is_an_error(shop, client):
    await shop.changes(1, 1)
    async with client.stream_wal("shop", "public.orders") as stream:
        await first(stream, 1)
        await shop.client.jetstream().delete_stream(shop.names.stream(Kind.WAL))
        with pytest.raises(BrokerError, match=f"stream '{shop.names.root}_wal' does not exist") as caught:
            await first(stream, 1)
        assert not caught.value.retryable


async def test_a_stream_that_is_deleted_and_made_anew_is_not_taken_for_the_old_one(shop, client):
    await shop.changes(1, 3)
    async with client.stream_wal("shop", "public.orders") as stream:
        await first(stream, 3)
        name, subjects = shop.names.stream(Kind.WAL), [shop.names.stream_subject(Kind.WAL)]
        await shop.client.jetstream().delete_stream(name)
        await shop.client.jetstream().add_stream(StreamConfig(name=name, subjects=subjects))
        await shop.changes(4, 8)
        with pytest.raises(PositionError, match="made anew"):
            await first(stream, 1)
