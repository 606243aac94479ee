"""Who serves the table, what becomes of its history, of its partitions and of its dead rows."""

import asyncio
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headwater.errors import OutboxError, RelayFailed
from headwater.outbox import Event, OutboxRelay, RelaySettings, publish_many_sync, statements
from headwater.outbox.checkpoint import forget_checkpoint, take_checkpoint
from headwater.outbox.partitions import ensure_partitions
from headwater.outbox.relay.maintenance import Maintenance
from headwater.outbox.served import find_served, release_served
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync, fetch_sync
from tests.support.outbox.arrivals import eventually, partitions, statuses
from tests.support.servers.tcp_proxy import Proxy

pytestmark = pytest.mark.timeout(90)


def write(url: str, topic: str, count: int) -> None:
    with psycopg.connect(url) as connection:
        publish_many_sync(connection, [Event(topic, "Early", number) for number in range(count)])


async def test_a_table_that_a_pipeline_delivers_is_refused(start_relay, connection, outbox_url):
    take_checkpoint(outbox_url, "events", "headwater.outbox_message")
    with pytest.raises(OutboxError, match=r"pipeline 'events' delivers .*`headwater destroy`"):
        await OutboxRelay(outbox_url, "amqp://localhost").start()
    assert find_served(connection) is None
    forget_checkpoint(connection, "events")
    await start_relay()


async def test_a_pipeline_is_refused_while_relays_serve_the_table(start_relay, connection, outbox_url):
    relay = await start_relay()
    await relay.stop()
    with pytest.raises(OutboxError, match="headwater outbox release"):
        take_checkpoint(outbox_url, "events", "headwater.outbox_message")
    take_checkpoint(outbox_url, "others", "public.another_outbox")
    assert release_served(connection)
    assert not release_served(connection)
    take_checkpoint(outbox_url, "events", "headwater.outbox_message")


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_nobody_is_told_that_no_relay_serves_the_table_while_one_runs(start_relay, connection, is_ordered):
    relay = await start_relay(order_by_key=is_ordered)
    await eventually(lambda: fetch_sync(connection, statements.list_relays()))
    pids = fetch_sync(connection, statements.list_relays())
    with pytest.raises(OutboxError, match=rf"a relay of headwater.outbox_message runs, .*\b{pids[0]}\b.*; stop it first"):
        await asyncio.to_thread(release_served, connection)
    assert find_served(connection) is not None
    await relay.stop()
    assert release_served(connection)


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_relay_that_was_released_while_it_was_cut_off_ends_and_says_so(
    start_relay, connection, queue, outbox_url, is_ordered
):
    arrived = queue()
    with Proxy(outbox_url) as proxy:
        relay = await start_relay(
            url=proxy.url, order_by_key=is_ordered, restarts=2, revive_every=timedelta(milliseconds=50)
        )
        await eventually(lambda: fetch_sync(connection, statements.list_relays()))
        proxy.refuse = True
        proxy.cut()
        assert await asyncio.to_thread(release_served, connection)
        write(outbox_url, arrived.name, 1)
        proxy.refuse = False
        with pytest.raises(RelayFailed, match="`headwater outbox release` was run"):
            await relay.wait()
    assert not relay.is_running
    assert arrived.ids() == [], "a pipeline may send it by now"


async def test_the_first_relay_may_skip_what_is_there_and_a_later_one_may_not(start_relay, client, queue, outbox_url):
    arrived = queue()
    write(outbox_url, arrived.name, 5)
    relay = await start_relay(skip_existing=True)
    assert statuses(outbox_url) == {"published": 5}
    await relay.stop()
    write(outbox_url, arrived.name, 2)
    await start_relay(skip_existing=True)
    await eventually(lambda: len(arrived.ids()) == 2)
    await eventually(lambda: statuses(outbox_url) == {"published": 7})


async def test_dead_events_are_listed_and_sent_again_when_somebody_says_so(start_relay, client, outbox_url, connection):
    relay = await start_relay(revive_every=timedelta(milliseconds=100))
    async with relay.transaction(client) as tx:
        ids = await tx.publish_many([Event(f"none-{number}", "Lost", {}, key="k") for number in range(3)])
    await eventually(lambda: statuses(outbox_url) == {"dead": 3})
    (first, second) = fetch_sync(connection, statements.list_dead(2))
    (third,) = fetch_sync(connection, statements.list_dead(2, (second.created_at, second.id)))
    assert [one.id for one in (first, second, third)] == ids
    assert (first.topic, first.type, first.key, first.attempts) == ("none-0", "Lost", "k", 1)
    assert "unroutable" in str(first.error)
    (state,) = fetch_sync(connection, statements.relay_state())
    assert (state.pending, state.leased, state.postponed, state.dead, state.lanes) == (0, 0, 0, 3, 0)
    assert state.oldest_age is None
    assert state.served_since is not None
    assert execute_sync(connection, statements.revive_dead([ids[0]])) == 1
    await eventually(lambda: relay.counts.dead == 4 and statuses(outbox_url) == {"dead": 3})
    assert execute_sync(connection, statements.revive_dead()) == 3
    await eventually(lambda: relay.counts.dead == 7)


async def test_partitions_are_made_ahead_and_dropped_when_all_in_them_is_published(outbox_url, connection):
    now = datetime.now(UTC)
    settings = RelaySettings(retention=timedelta(days=3), partitions_ahead=timedelta(days=2))
    ensure_partitions(connection)
    for days in (9, 8):
        at = datetime(now.year, now.month, now.day, tzinfo=UTC) - timedelta(days=days)
        partition = statements.Partition("headwater", f"old_{days}", at, at + timedelta(days=1))
        execute_sync(connection, statements.create_partition(partition))
        connection.execute(
            "insert into headwater.outbox_message (created_at, topic, type, payload, status) "
            "values (%s, 'a', 'b', '1', 'published'), (%s, 'a', 'b', '1', %s)",
            [at, at, "published" if days == 9 else "dead"],
        )
    _, purged = Maintenance(outbox_url, settings).maintain()
    assert [one.name for one in purged.dropped] == ["old_9"]
    assert [one.name for one in purged.kept] == ["old_8"], "a dead event is never dropped by time"
    assert len([name for name in partitions(outbox_url) if "outbox_message_2" in name]) == 8


async def test_a_trace_goes_from_the_transaction_to_the_confirm(start_relay, client, queue, outbox_url, monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # Its own setter works once in a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    arrived = queue()
    relay = await start_relay()
    with trace.get_tracer("test").start_as_current_span("request") as request:
        async with relay.transaction(client) as tx:
            id_ = await tx.publish(arrived.name, "Traced", {})
            await tx.publish("no-such-queue", "Traced", {})
    async with relay.transaction(client) as tx:
        await tx.publish(arrived.name, "Untraced", {})
    await eventually(lambda: statuses(outbox_url) == {"published": 2, "dead": 1})
    spans = exporter.get_finished_spans()
    assert {span.context.trace_id for span in spans} == {request.get_span_context().trace_id}
    publishes = {span.context.span_id: span for span in spans if span.name == "publish"}
    sends = [span for span in spans if span.name == "send"]
    assert {parent_of(span) for span in publishes.values()} == {request.get_span_context().span_id}
    assert {parent_of(span) for span in sends} == set(publishes)
    assert [(span.attributes or {})["messaging.message.id"] for span in sends if span.status.is_ok] == [str(id_)]
    assert ["unroutable" in (span.status.description or "") for span in sends if not span.status.is_ok] == [True]


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


async def test_what_a_granted_role_may_do_is_enough_to_relay(start_relay, queue, outbox_url, connection):
    connection.execute("create role relayer login password 'secret'")
    execute_sync(connection, statements.grant_relaying("relayer"))
    arrived = queue()
    url = psycopg.conninfo.make_conninfo(outbox_url, user="relayer", password="secret")
    try:
        relay = await start_relay(url=url)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as client:
            async with relay.transaction(client) as tx:
                await tx.publish(arrived.name, "Granted", {})
        await eventually(lambda: statuses(outbox_url) == {"published": 1})
        await relay.stop()
    finally:
        connection.execute("drop owned by relayer")
        connection.execute("drop role relayer")


@pytest.mark.parametrize("reads", [False, True], ids=["writes", "reads too"])
async def test_a_role_that_may_only_write_is_told_what_it_lacks_to_relay(outbox_url, connection, reads):
    connection.execute("create role writer login password 'secret'")
    execute_sync(connection, statements.grant_writing("writer"))
    if reads:
        connection.execute("grant select on all tables in schema headwater to writer")
    url = psycopg.conninfo.make_conninfo(outbox_url, user="writer", password="secret")
    try:
        with pytest.raises(OutboxError, match=r"role writer may not relay .*`headwater outbox init --grant-relay writer`"):
            await OutboxRelay(url, "amqp://localhost").start()
    finally:
        connection.execute("drop owned by writer")
        connection.execute("drop role writer")


async def test_a_relay_makes_no_partition_of_the_present_which_would_fail_who_writes_now(outbox_url, connection):
    ensured, _ = Maintenance(outbox_url, RelaySettings()).maintain()
    assert len(ensured.made) == 7
    assert all(partition.lower > datetime.now(UTC) for partition in ensured.made)


async def test_the_first_of_many_that_wait_are_claimed_without_reading_the_others(outbox_url, connection):
    """Also with statistics that tell nothing, as a new partition has."""
    ensure_partitions(connection)
    connection.execute(
        "insert into headwater.outbox_message (topic, type, payload, status) "
        "select 'a', 'b', '1', case when n % 2 = 0 then 'pending' else 'published' end from generate_series(1, 20000) as n"
    )
    execute_sync(connection, statements.prepare_session())
    claim = statements.claim_due("me", timedelta(seconds=30), (0, "00000000-0000-0000-0000-000000000000"), 10)
    explain = b"explain (analyze, timing off, format json) "
    ((plan,),) = connection.execute(explain + claim.query.as_bytes(), claim.parameters).fetchall()
    nodes = list(plan_nodes(plan[0]["Plan"]))
    scans = [node for node in nodes if "Scan" in node["Node Type"] and "Relation Name" in node and node["Actual Loops"]]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in scans) == 20, "each is found, and then changed"
    assert sum(node.get("Rows Removed by Filter", 0) * node["Actual Loops"] for node in scans) == 0
    assert not {"Sort", "Incremental Sort", "Seq Scan", "Bitmap Heap Scan"} & {node["Node Type"] for node in nodes}


def plan_nodes(node):
    yield node
    for child in node.get("Plans", ()):
        yield from plan_nodes(child)


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_every_version_of_the_server_is_served(start_relay, any_outbox_url, queue, is_ordered):
    arrived = queue()
    relay = await start_relay(url=any_outbox_url, order_by_key=is_ordered)
    async with await psycopg.AsyncConnection.connect(any_outbox_url, autocommit=True) as client:
        async with relay.transaction(client) as tx:
            sent = [str(await tx.publish(arrived.name, "Sent", number, key="k")) for number in range(3)]
            await tx.publish("no-such-queue", "Lost", {}, key="k")
        await client.execute(
            "insert into headwater.outbox_message (topic, type, payload) values (%s, 'B', '1')", [arrived.name]
        )
    await eventually(lambda: statuses(any_outbox_url) == {"published": 4, "dead": 1})
    assert [id_ for id_ in arrived.ids() if id_ in sent] == sent
    with closing(connect_sync(any_outbox_url)) as connection:
        assert execute_sync(connection, statements.revive_dead()) == 1
        (state,) = fetch_sync(connection, statements.relay_state())
    assert state.lanes == (16 if is_ordered else 0)
    # Before its database is dropped, of which the end of the relay would tell.
    await relay.stop()
