"""How a relay ends: what it finishes, what it gives back, and what it says of the rest."""

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta

import psycopg
import pytest

from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.errors import OutboxError, RelayFailed
from headwater.outbox import Event, Leftover
from headwater.outbox.relay.saver import Saver
from tests.support.outbox.arrivals import eventually, rows, statuses
from tests.support.servers.tcp_proxy import Proxy

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
        proxy.refuse = True
        proxy.cut()
        await publish_many(relay, client, arrived.name, 10)
        assert {row["locked_by"] for row in rows(outbox_url, "locked_by")} == {relay.instance}
        await eventually(lambda: not relay.counts.is_broker_up and not relay.counts.in_flight)
        leftover = await relay.stop()
    held = len(rows(outbox_url, where="locked_by is not null"))
    # An attempt may have begun just then: what it took is held until the lease ends.
    assert leftover == Leftover(released=10 - held, in_flight=held)
    assert statuses(outbox_url) == {"pending": 10}
    assert arrived.ids() == []


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
        relay = await start_relay(url=proxy.url)
        proxy.refuse = True
        proxy.cut()
        await publish_many(relay, client, arrived.name, 10)
        await eventually(lambda: relay.counts.published == 10)
        leftover = await relay.stop(SECOND)
    assert leftover == Leftover(unsaved=10)
    assert len(arrived.ids()) == 10


class Frozen(Proxy):
    """Tells how much it has swallowed since it was frozen."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.swallowed = 0

    def _pump(self, source, target, frozen):
        with suppress(OSError):
            while data := source.recv(65536):
                if frozen.is_set():
                    self.swallowed += 1
                else:
                    target.sendall(data)


async def test_a_database_that_does_not_answer_holds_up_no_stop_beyond_its_deadline(start_relay, client, queue, outbox_url):
    """Whichever of the relay's connections is waiting for it: that which claims, and that which writes down."""
    arrived = queue()
    with Frozen(outbox_url) as proxy:
        relay = await start_relay(url=proxy.url, revive_every=timedelta(hours=1))
        await publish_many(relay, client, arrived.name, 1)
        await eventually(lambda: statuses(outbox_url) == {"published": 1} and relay.counts.sweeps)
        # It has a connection too, by which it makes partitions when the relay starts.
        await eventually(lambda: all(thread.name != "outbox maintenance" for thread in threading.enumerate()))
        proxy.refuse = True
        proxy.freeze()
        await publish_many(relay, client, arrived.name, 10)
        await eventually(lambda: relay.counts.published == 11 and proxy.swallowed == 1)
        relay.wake()
        await eventually(lambda: proxy.swallowed == 2)
        # Each step that had the whole time to itself would take it beyond that.
        async with asyncio.timeout(6):
            leftover = await relay.stop(3 * SECOND)
    assert leftover == Leftover(unsaved=10)
    assert len(arrived.ids()) == 11


async def test_a_saver_that_always_fails_keeps_no_relay_from_its_end(start_relay, client, queue, outbox_url, monkeypatch):
    async def broken(self, batch):
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(Saver, "_save_published", broken)
    arrived = queue()
    relay = await start_relay(restarts=1)
    sent = await publish_many(relay, client, arrived.name, 3)
    with pytest.raises(RelayFailed, match="task 'saver' of the outbox relay failed 2 times"):
        await relay.wait()
    assert not relay.is_running
    assert await relay.stop() == Leftover()
    assert statuses(outbox_url) == {"pending": 3}
    assert sorted(arrived.ids()) == sorted(sent)


async def test_a_relay_is_started_once(start_relay):
    relay = await start_relay()
    with pytest.raises(OutboxError, match="running already"):
        await relay.start()


def has_all_lanes(url):
    with psycopg.connect(url) as connection:
        query = "select count(*) > 0 and count(owner) = count(*) from headwater.outbox_lane"
        return connection.execute(query).fetchone() == (True,)


async def test_with_order_stop_finishes_its_lanes_and_leaves_them(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay(order_by_key=True, claim_rows=20)
    await eventually(lambda: has_all_lanes(outbox_url))
    sent = await publish_many(relay, client, arrived.name, 300)
    assert await relay.stop() == Leftover()
    assert statuses(outbox_url) == {"published": 300}
    assert sorted(arrived.ids()) == sorted(sent)
    owners = await (await client.execute("select distinct owner from headwater.outbox_lane")).fetchall()
    assert owners == [(None,)]
