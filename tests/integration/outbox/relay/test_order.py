"""The order of keys when something goes wrong: what is not taken holds up its own key, and nobody else's."""

import time
from datetime import timedelta

import psycopg
import pytest

from headwater.outbox import statements
from headwater.outbox.partitions import ensure_partitions
from headwater.outbox.relay.messages import as_messages
from headwater.outbox.relay.session import Session
from headwater.postgres.statements import execute_sync
from tests.support.outbox.arrivals import eventually, rows, statuses

pytestmark = pytest.mark.timeout(90)

MOMENT = timedelta(milliseconds=50)
HASTY = {"order_by_key": True, "lanes": 2, "revive_every": MOMENT, "retry_wait": MOMENT, "longest_wait": 2 * MOMENT}


async def test_a_full_queue_holds_up_its_key_only_and_what_it_never_takes_is_dead(start_relay, client, queue, outbox_url):
    full, open_ = queue(x_max_length=1, x_overflow="reject-publish"), queue()
    relay = await start_relay(max_attempts=6, **HASTY)
    async with relay.transaction(client) as tx:
        first = await tx.publish(full.name, "Taken", 1, key="a")
        await tx.publish(full.name, "Nacked", 2, key="a")
        others = [str(await tx.publish(open_.name, "Other", number, key=f"b{number}")) for number in range(50)]
        last = await tx.publish(open_.name, "Last", 3, key="a")
    await eventually(lambda: statuses(outbox_url) == {"published": 52, "dead": 1})
    assert full.ids() == [str(first)]
    assert [id_ for id_ in open_.ids() if id_ != str(last)] == others, "each once, whatever becomes of the full queue"
    assert open_.ids()[-1] == str(last)
    assert open_.ids().count(str(last)) <= 2, "with the first attempt, and when it was its turn"
    (dead,) = rows(outbox_url, "attempts, error", "status = 'dead'")
    assert (dead["attempts"], dead["error"].startswith("given up after 6 attempts: ")) == (6, True)
    assert relay.counts.is_broker_up
    assert (relay.counts.dead, relay.counts.postponed, relay.counts.restarts) == (1, 5, 0)


async def test_what_waits_behind_an_event_that_is_not_taken_comes_after_it(start_relay, client, queue, outbox_url):
    full, open_ = queue(x_max_length=1, x_overflow="reject-publish"), queue()
    relay = await start_relay(max_attempts=1_000_000, **HASTY)
    async with relay.transaction(client) as tx:
        await tx.publish(full.name, "Filling", 1, key="other")
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    async with relay.transaction(client) as tx:
        held = str(await tx.publish(full.name, "Held", 2, key="a"))
    await eventually(lambda: rows(outbox_url, "attempts", "status = 'pending'")[0]["attempts"] > 3)
    async with relay.transaction(client) as tx:
        behind = [str(await tx.publish(open_.name, "Behind", number, key="a")) for number in range(20)]
        free = str(await tx.publish(open_.name, "Free", 3, key="b"))
    await eventually(lambda: open_.ids() == [free])
    attempts = rows(outbox_url, "attempts", "status = 'pending'")[0]["attempts"]
    await eventually(lambda: rows(outbox_url, "attempts", "status = 'pending'")[0]["attempts"] > attempts + 3)
    assert open_.ids() == [free], "nothing of the key while its first waits"
    assert {row["attempts"] for row in rows(outbox_url, "attempts", "type = 'Behind'")} == {0}
    await eventually(lambda: held in full.ids())
    await eventually(lambda: statuses(outbox_url) == {"published": 23})
    assert open_.ids() == [free, *behind]


async def test_one_that_is_to_be_tried_later_holds_up_its_key_for_a_new_owner_too(start_relay, client, queue, outbox_url):
    arrived = queue()
    ids = [
        str(id_)
        for key, wait in (("a", "2 s"), ("a", None), ("b", None), (None, "1 h"), (None, None))
        for (id_,) in await (
            await client.execute(
                "insert into headwater.outbox_message (topic, type, key, payload, attempts, next_attempt_at) "
                "values (%s, 'Kept', %s, '1', 0, clock_timestamp() + %s::interval) returning id",
                [arrived.name, key, wait],
            )
        ).fetchall()
    ]
    await start_relay(**HASTY)
    await eventually(lambda: sorted(arrived.ids()) == sorted([ids[2], ids[4]]))
    await eventually(lambda: statuses(outbox_url) == {"published": 4, "pending": 1})
    assert arrived.ids()[2:] == ids[:2]


async def test_an_ordered_event_that_breaks_the_code_of_a_driver_is_dead_and_the_others_arrive(
    start_relay, client, queue, outbox_url, monkeypatch
):
    def fragile(entries):
        if any("poison" in one.payload for one in entries):
            raise ValueError("cannot digest \0 this")
        return as_messages(entries)

    monkeypatch.setattr("headwater.outbox.relay.thread.as_messages", fragile)
    arrived = queue()
    relay = await start_relay(max_attempts=12, **HASTY)
    async with relay.transaction(client) as tx:
        sent = [str(await tx.publish(arrived.name, "Good", number, key=str(number % 5))) for number in range(30)]
        await tx.publish(arrived.name, "Bad", "poison", key="0")
        sent += [str(await tx.publish(arrived.name, "Good", number, key=str(number % 5))) for number in range(30)]
    await eventually(lambda: statuses(outbox_url) == {"published": 60, "dead": 1}, seconds=30)
    assert sorted(arrived.ids()) == sorted(sent)
    for key in range(5):
        assert [id_ for id_ in arrived.ids() if id_ in sent[key::5]] == sent[key::5]
    assert relay.counts.restarts == 0


@pytest.mark.parametrize("is_regained", [False, True])
async def test_what_was_read_before_another_had_the_lanes_is_not_sent(
    start_relay, client, queue, outbox_url, monkeypatch, is_regained
):
    """As when the application blocks its event loop for longer than the lease, and another sends these events and more."""
    arrived = queue()
    lease = timedelta(seconds=4.5)
    stalls: list[object] = []
    fetch = Session.fetch

    async def stalling(self, statement):
        found = await fetch(self, statement)
        if statement.name == "read_lanes" and found and not stalls:
            stalls.append(found)
            with psycopg.connect(outbox_url) as other:
                other.execute("update headwater.outbox_lane set owner = 'other', until = now(), epoch = epoch + 1")
                other.execute("update headwater.outbox_message set status = 'published'")
            if is_regained:
                await relay._running._keeper.keep()
            else:
                time.sleep(lease.total_seconds())  # noqa: ASYNC251 - the stall
        return found

    monkeypatch.setattr(Session, "fetch", stalling)
    relay = await start_relay(lease=lease, confirm_timeout=timedelta(seconds=1), **HASTY)
    async with relay.transaction(client) as tx:
        await tx.publish(arrived.name, "Old", 1, key="a")
    await eventually(lambda: stalls)
    async with relay.transaction(client) as tx:
        new = str(await tx.publish(arrived.name, "New", 2, key="a"))
    await eventually(lambda: statuses(outbox_url) == {"published": 2})
    assert arrived.ids() == [new]
    assert relay.counts.suspected_duplicates == 0


async def test_whether_anything_is_to_be_tried_later_is_found_without_reading_what_waits(outbox_url, connection):
    ensure_partitions(connection)
    connection.execute(
        "insert into headwater.outbox_message (topic, type, key, payload) "
        "select 'a', 'b', n, '1' from generate_series(1, 20000) as n"
    )
    execute_sync(connection, statements.prepare_session())
    for postponed in (0, 1):
        read = statements.read_lanes([0, 1], 2, 10)
        plan = [
            line
            for (line,) in connection.execute(
                b"explain (analyze, timing off, summary off) " + read.query.as_bytes(), read.parameters
            )
        ]
        used = [line for line in plan if "actual" in line and "never executed" not in line]
        assert not [line for line in used if "Seq Scan" in line or "Sort" in line]
        read_rows = [int(float(line.split(" rows=")[-1].split()[0])) for line in used if "Index" in line]
        assert max(read_rows) <= 10, "\n".join(plan)
        assert not [line for line in plan if "Rows Removed" in line and int(line.split()[-1]) > 1], f"{postponed}: {plan}"
        connection.execute("update headwater.outbox_message set next_attempt_at = now() + interval '1 h' where key = '1'")
