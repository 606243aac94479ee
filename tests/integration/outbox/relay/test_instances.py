"""Several instances over one table: none sends what another has, and what a dead one had is taken over."""

import asyncio
import random
import subprocess
import sys
from collections import defaultdict
from datetime import timedelta

import psycopg
import pytest

from headwater.errors import OutboxError
from headwater.outbox import Event, OutboxRelay, RelaySettings
from tests.support.outbox.arrivals import eventually, rows, statuses

pytestmark = pytest.mark.timeout(120)

MOMENT = timedelta(milliseconds=50)


async def test_instances_never_send_the_same_row_when_nothing_fails(start_relay, queue, outbox_url, record_property):
    arrived = queue()
    relays = [await start_relay(revive_every=MOMENT, claim_rows=20) for _ in range(3)]

    async def write(number: int) -> list[str]:
        sent: list[str] = []
        async with await psycopg.AsyncConnection.connect(outbox_url, autocommit=True) as connection:
            for round_ in range(30):
                async with relays[number % 3].transaction(connection) as tx:
                    sent += map(str, await tx.publish_many([Event(arrived.name, "Leased", round_)] * 3))
                # Nobody's, so that all of them are after it.
                query = "insert into headwater.outbox_message (topic, type, payload) values (%s, 'Bare', '1') returning id"
                sent += [str(id_) for (id_,) in await (await connection.execute(query, [arrived.name])).fetchall()]
        return sent

    sent = [id_ for ids in await asyncio.gather(*map(write, range(6))) for id_ in ids]
    await eventually(lambda: statuses(outbox_url) == {"published": len(sent)}, seconds=30)
    counts = [relay.counts for relay in relays]
    record_property("counts", f"{len(sent)} events by 3 instances: {len(arrived.ids()) - len(set(sent))} twice")
    assert sorted(arrived.ids()) == sorted(sent)
    assert sum(one.revived for one in counts) == 180
    assert sum(one.suspected_duplicates for one in counts) == 0
    assert {row["attempts"] for row in rows(outbox_url, "attempts")} == {1}


async def test_what_a_dead_instance_had_is_taken_over_when_its_lease_ends(start_relay, client, queue, outbox_url):
    arrived = queue()
    survivor = await start_relay(revive_every=MOMENT)
    await client.execute(
        "insert into headwater.outbox_message (topic, type, payload, locked_by, locked_until) "
        "values (%s, 'Held', '1', 'dead', clock_timestamp() + interval '1 hour')",
        [arrived.name],
    )
    swept = survivor.counts.sweeps
    await eventually(lambda: survivor.counts.sweeps > swept + 1)
    assert arrived.ids() == [], "it is another's"
    await client.execute("update headwater.outbox_message set locked_until = clock_timestamp()")
    await eventually(lambda: len(arrived.ids()) == 1)
    await eventually(lambda: statuses(outbox_url) == {"published": 1})


async def test_an_event_whose_lease_has_ended_is_not_sent_by_the_one_who_had_it(start_relay, client, queue, outbox_url):
    """As after a long pause between the insert and the commit."""
    arrived = queue()
    relay = await start_relay(lease=timedelta(seconds=4), confirm_timeout=timedelta(seconds=1))
    (leased,) = relay.prepare([Event(arrived.name, "Late", {})])
    cursor = await client.execute(
        "insert into headwater.outbox_message (id, topic, type, payload, locked_by, locked_until) "
        "values (%s, %s, 'Late', '{}', %s, clock_timestamp() + interval '1 s') returning created_at",
        [leased.event.id, arrived.name, relay.instance],
    )
    leased.created_at = (await cursor.fetchone())[0]
    leased.deadline -= 4
    relay.hand_over([leased])
    await eventually(lambda: relay.counts.let_go == 1)
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    assert relay.counts.revived == 1
    assert arrived.ids() == [str(leased.event.id)]


async def test_keys_keep_their_order_with_several_instances_under_load(start_relay, queue, outbox_url, record_property):
    arrived = queue()
    settings = {"order_by_key": True, "lanes": 8, "revive_every": MOMENT, "claim_rows": 50}
    relays = [await start_relay(lease=timedelta(seconds=6), confirm_timeout=timedelta(seconds=2), **settings)]
    keys = [f"key {number}" for number in range(20)]
    numbers: defaultdict[str, int] = defaultdict(int)
    sent: list[tuple[str, str]] = []

    async def write(mine: list[str], chance: random.Random) -> None:
        async with await psycopg.AsyncConnection.connect(outbox_url, autocommit=True) as connection:
            for _ in range(60):
                async with chance.choice(relays).transaction(connection) as tx:
                    for key in chance.sample(mine, 3):
                        numbers[key] += 1
                        sent.append((key, str(await tx.publish(arrived.name, "Counted", numbers[key], key=key))))

    writers = [asyncio.create_task(write(keys[place::4], random.Random(place))) for place in range(4)]
    await eventually(lambda: relays[0].counts.published > 100)
    # Comes while all lanes are owned, and gets its share of them.
    relays.append(await start_relay(lease=timedelta(seconds=6), confirm_timeout=timedelta(seconds=2), **settings))
    await asyncio.gather(*writers)
    await eventually(lambda: statuses(outbox_url) == {"published": len(sent)}, seconds=30)
    place_of = {id_: place for place, id_ in enumerate(arrived.ids())}
    record_property("counts", f"{len(sent)} ordered events: {len(arrived.ids()) - len(sent)} twice")
    for key in keys:
        places = [place_of[id_] for of, id_ in sent if of == key]
        assert places == sorted(places)
    assert len(arrived.ids()) == len(sent)


async def test_lanes_are_shared_and_those_of_a_stopped_instance_go_to_others_at_once(start_relay, outbox_url, client):
    settings = {
        "order_by_key": True,
        "lanes": 4,
        "lease": timedelta(seconds=3),
        "confirm_timeout": timedelta(milliseconds=500),
        "revive_every": MOMENT,
    }

    def owners() -> dict[str | None, int]:
        with psycopg.connect(outbox_url) as connection:
            return dict(connection.execute("select owner, count(*) from headwater.outbox_lane group by owner").fetchall())

    first = await start_relay(**settings)
    await eventually(lambda: owners() == {first.instance: 4})
    second = await start_relay(**settings)
    await eventually(lambda: owners() == {first.instance: 2, second.instance: 2})
    await second.stop()
    await eventually(lambda: owners() == {first.instance: 4})


async def test_instances_that_are_given_the_same_name_are_told_apart(start_relay, outbox_url, client):
    settings = {"order_by_key": True, "lanes": 4, "lease": timedelta(seconds=3), "confirm_timeout": MOMENT}
    relays = [await start_relay(instance="web", **settings) for _ in range(2)]
    names = {relay.instance for relay in relays}
    assert len(names) == 2
    assert all(name.startswith("web-") for name in names)

    def owners() -> dict[str | None, int]:
        with psycopg.connect(outbox_url) as connection:
            return dict(connection.execute("select owner, count(*) from headwater.outbox_lane group by owner").fetchall())

    await eventually(lambda: owners() == dict.fromkeys(names, 2))
    await relays[0].stop()
    await relays[0].start()
    assert relays[0].instance not in names, "the leases of an earlier start are not its own"


PRELOADED = """
import asyncio, os, sys
import psycopg
from headwater.outbox import OutboxRelay, RelaySettings

url, broker = sys.argv[1:]
relay = OutboxRelay(url, broker, RelaySettings(order_by_key=True, claim_rows=50))

async def work():
    async with relay:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            pending = "select exists (select from headwater.outbox_message where status = 'pending')"
            while (await (await connection.execute(pending)).fetchone())[0]:
                await asyncio.sleep(0.05)

children = []
for _ in range(3):
    if (child := os.fork()) == 0:
        asyncio.run(work())
        os._exit(0)
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


async def test_workers_forked_from_a_process_that_made_the_relay_keep_the_order(client, queue, outbox_url, rabbitmq):
    """As those of a server that loads the application before it forks."""
    arrived = queue()
    await client.execute(
        "insert into headwater.outbox_message (topic, type, key, payload) "
        "select %s, 'Counted', 'k', n::text::json from generate_series(1, 900) as n",
        [arrived.name],
    )
    ids = [str(row["id"]) for row in rows(outbox_url, "id")]
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", PRELOADED, outbox_url, rabbitmq.url], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert arrived.ids() == ids


FORKED = """
import asyncio, os, sys
import psycopg
from headwater.outbox import OutboxRelay, RelaySettings

url, broker, topic = sys.argv[1:]

async def main():
    async with OutboxRelay(url, broker) as relay:
        if (child := os.fork()) == 0:
            with psycopg.connect(url) as connection, relay.transaction_sync(connection) as tx:
                tx.publish(topic, "Forked", 1)
            print(relay.is_running, relay.lease(1).instance, flush=True)
            os._exit(0)
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            await asyncio.sleep(0.02)
        while not relay.counts.published:
            await asyncio.sleep(0.02)
        print(relay.is_running, relay.counts.revived)

asyncio.run(main())
"""


async def test_a_forked_child_leaves_its_events_to_whoever_finds_them(queue, outbox_url, rabbitmq):
    """Its copy of the relay does not run: what it took nobody would send."""
    arrived = queue()
    command = [sys.executable, "-c", FORKED, outbox_url, rabbitmq.url, arrived.name]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False None", "True 1"], done.stderr
    assert len(arrived.ids()) == 1


async def test_of_two_starts_at_once_one_is_refused(outbox_url, rabbitmq):
    relay = OutboxRelay(outbox_url, rabbitmq.url)
    first, second = await asyncio.gather(relay.start(), relay.start(), return_exceptions=True)
    assert first is None
    assert isinstance(second, OutboxError)
    assert "running already" in str(second)
    await relay.stop()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("outbox ")]


async def test_a_start_that_failed_may_be_repeated(outbox_url, rabbitmq, connection):
    relay = OutboxRelay(outbox_url, rabbitmq.url)
    connection.execute("insert into headwater.outbox_served (lanes) values (3)")
    with pytest.raises(OutboxError, match="3 lanes"):
        await relay.start()
    connection.execute("delete from headwater.outbox_served")
    async with relay:
        assert relay.is_running


async def test_a_lane_is_sent_by_another_when_its_owner_has_died(start_relay, client, queue, outbox_url):
    arrived = queue()
    settings = {"order_by_key": True, "lanes": 2, "lease": timedelta(seconds=4), "confirm_timeout": timedelta(seconds=1)}
    await start_relay(instance="a", **settings)
    await client.execute(
        "update headwater.outbox_lane set owner = 'dead', until = clock_timestamp() + interval '2 s' where lane = 1"
    )
    async with OutboxRelay(outbox_url, "amqp://localhost").transaction(client) as tx:
        ids = [str(await tx.publish(arrived.name, "Kept", number, key=str(number))) for number in range(20)]
    await eventually(lambda: statuses(outbox_url) == {"published": 20})
    assert sorted(arrived.ids()) == sorted(ids)


async def test_in_order_an_unroutable_event_is_dead_and_holds_up_nothing(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay(order_by_key=True, lanes=1)
    async with relay.transaction(client) as tx:
        first = await tx.publish(arrived.name, "Good", 1, key="a")
        await tx.publish("no-such-queue", "Lost", 2, key="a")
        last = await tx.publish(arrived.name, "Good", 3, key="a")
    await eventually(lambda: statuses(outbox_url) == {"published": 2, "dead": 1})
    assert arrived.ids() == [str(first), str(last)]
    assert "unroutable" in rows(outbox_url, "error", "status = 'dead'")[0]["error"]


async def test_relays_with_and_without_order_are_not_mixed(start_relay, outbox_url):
    await start_relay(order_by_key=True)
    with pytest.raises(OutboxError, match="16 lanes that keep the order of keys, and this one is set to no order"):
        await OutboxRelay(outbox_url, "amqp://localhost", RelaySettings()).start()
