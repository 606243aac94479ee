"""How a relay ends: what it finishes, what it gives back, and what it says of the rest."""

import asyncio
from datetime import timedelta

import pytest

from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.errors import OutboxError
from headwater.outbox import Event, Leftover
from tests.integration.outbox.relay.arrivals import eventually, rows, statuses
from tests.proxy import Proxy

pytestmark = pytest.mark.timeout(90)

SECOND = timedelta(seconds=1)


async def publish_many(relay, client, topic, count):
    async with relay.transaction(client) as tx:
        return [str(id_) for id_ in await tx.publish_many([Event(topic, "Counted", number) for number in range(count)])]


async def test_stop_sends_what_was_handed_over_and_writes_it_down(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay(save_every=timedelta(minutes=1), save_rows=100_000, window=50)
    sent = await publish_many(relay, client, arrived.name, 500)
    assert await relay.stop() == Leftover()
    assert statuses(outbox_url) == {"published": 500}
    assert sorted(arrived.ids()) == sorted(sent)


async def test_after_the_stop_events_are_written_without_a_lease_and_a_second_start_sends_them(
    start_relay, client, queue, outbox_url
):
    arrived = queue()
    relay = await start_relay()
    await relay.stop()
    assert not relay.is_running
    await relay.wait()
    sent = await publish_many(relay, client, arrived.name, 3)
    assert {row["locked_by"] for row in rows(outbox_url, "locked_by")} == {None}
    await relay.start()
    await eventually(lambda: statuses(outbox_url) == {"published": 3})
    assert sorted(arrived.ids()) == sorted(sent)


async def test_stop_gives_back_what_it_cannot_send_and_says_so(start_relay, client, queue, outbox_url, rabbitmq):
    arrived = queue()
    with Proxy(rabbitmq.url) as proxy:
        relay = await start_relay(RabbitmqAccess(url=proxy.url), confirm_timeout=SECOND)
        await publish_many(relay, client, arrived.name, 1)
        await eventually(lambda: statuses(outbox_url) == {"published": 1})
        proxy.refuse = True
        proxy.cut()
        await publish_many(relay, client, arrived.name, 10)
        await eventually(lambda: not relay.counts.is_broker_up)
        leftover = await relay.stop()
    assert leftover.unsaved == 0
    assert leftover.released + leftover.in_flight + len(rows(outbox_url, where="locked_by is null")) >= 10
    assert statuses(outbox_url) == {"published": 1, "pending": 10}


async def test_stop_does_not_wait_longer_than_its_deadline_for_a_broker_that_never_confirms(
    start_relay, client, queue, outbox_url, rabbitmq
):
    arrived = queue()
    with Proxy(rabbitmq.url) as proxy:
        relay = await start_relay(RabbitmqAccess(url=proxy.url))
        await publish_many(relay, client, arrived.name, 1)
        await eventually(lambda: statuses(outbox_url) == {"published": 1})
        proxy.freeze()
        await publish_many(relay, client, arrived.name, 10)
        await eventually(lambda: relay.counts.in_flight == 10)
        async with asyncio.timeout(8):
            leftover = await relay.stop(SECOND)
    assert leftover == Leftover(in_flight=10)
    held = rows(outbox_url, "locked_by", "status = 'pending'")
    assert [row["locked_by"] for row in held] == [relay.instance] * 10, "they may be stored: others wait for the lease"


async def test_stop_says_what_it_could_not_write_down(start_relay, client, queue, outbox_url):
    arrived = queue()
    with Proxy(outbox_url) as proxy:
        relay = await start_relay(url=proxy.url, save_every=timedelta(milliseconds=500))
        await publish_many(relay, client, arrived.name, 10)
        await eventually(lambda: relay.counts.published == 10)
        proxy.refuse = True
        proxy.cut()
        leftover = await relay.stop(SECOND)
    assert leftover == Leftover(unsaved=10)
    assert len(arrived.ids()) == 10


async def test_a_relay_is_started_once(start_relay):
    relay = await start_relay()
    with pytest.raises(OutboxError, match="running already"):
        await relay.start()


async def test_with_order_stop_finishes_its_lanes_and_leaves_them(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay(order_by_key=True, claim_rows=20)
    await eventually(lambda: relay.counts.oldest_seconds is not None)
    sent = await publish_many(relay, client, arrived.name, 300)
    assert await relay.stop() == Leftover()
    assert statuses(outbox_url) == {"published": 300}
    assert sorted(arrived.ids()) == sorted(sent)
    owners = await (await client.execute("select distinct owner from headwater.outbox_lane")).fetchall()
    assert owners == [(None,)]
