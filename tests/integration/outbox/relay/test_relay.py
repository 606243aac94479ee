"""The relay from the commit of a transaction to the broker and back to the table."""

import asyncio
import threading
import uuid
from contextlib import suppress
from socket import SHUT_RDWR
from unittest.mock import Mock

import psycopg
import pytest

from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.errors import OutboxError, SchemaError
from headwater.outbox import Event, OutboxRelay, RelaySettings, statements
from headwater.outbox import publish as publish_plainly
from headwater.outbox.checkpoint import prepare_outbox
from headwater.outbox.relay import identity
from headwater.postgres.statements import execute_sync
from tests.support.outbox.arrivals import eventually, partitions, rows, statuses
from tests.support.servers.embedded import fresh_database
from tests.support.servers.tcp_proxy import Proxy

# The first test waits for the servers.
pytestmark = pytest.mark.timeout(90)


async def test_an_event_of_a_committed_transaction_arrives_and_is_marked_as_published(
    start_relay, client, queue, outbox_url
):
    arrived = queue()
    relay = await start_relay()
    async with relay.transaction(client) as tx:
        await tx.execute("create table orders (id int)")
        id_ = await tx.publish(arrived.name, "OrderCreated", {"id": 17}, key="17", headers={"from": "shop"})
    await eventually(lambda: arrived.ids() == [str(id_)])
    assert arrived.bodies == [b'{"id":17}']
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    (row,) = rows(outbox_url)
    assert (row["attempts"], row["locked_by"], row["locked_until"], row["error"]) == (1, None, None, None)
    assert row["published_at"] > row["created_at"]
    assert relay.counts.revived == 0, "it went to the broker without a query of the table"


async def test_its_row_is_leased_by_the_instance_when_it_is_committed(start_relay, client, outbox_url, monkeypatch):
    relay = await start_relay(instance="shop-1")
    handed: list[object] = []
    monkeypatch.setattr(relay, "take", lambda *given: handed.append(given))
    async with relay.transaction(client) as tx:
        await tx.publish("orders", "OrderCreated", {})
    (row,) = rows(outbox_url, "locked_by, locked_until > now() + interval '25 s' as is_leased, status")
    assert row.pop("locked_by").startswith("shop-1")
    assert row == {"is_leased": True, "status": "pending"}
    assert len(handed) == 1


def roll_back() -> None:
    """Raise what a transaction ends with and takes for itself; a plain `raise` would have mypy skip what comes behind it."""
    raise psycopg.Rollback


async def test_what_is_rolled_back_is_neither_written_nor_sent(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay()
    with pytest.raises(ZeroDivisionError):
        async with relay.transaction(client) as tx:
            await tx.publish(arrived.name, "Undone", {})
            raise ZeroDivisionError
    async with relay.transaction(client) as tx:
        await tx.publish(arrived.name, "Undone", {})
        roll_back()
    async with relay.transaction(client) as tx:
        kept = await tx.publish(arrived.name, "Done", {})
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    assert arrived.ids() == [str(kept)]


async def test_what_a_savepoint_takes_back_is_neither_written_nor_sent(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay()
    async with relay.transaction(client) as tx:
        first = await tx.publish(arrived.name, "Done", 1)
        with pytest.raises(ZeroDivisionError):
            async with tx.transaction():
                await tx.publish(arrived.name, "Undone", 2)
                async with relay.transaction(client) as inner:
                    await inner.publish(arrived.name, "Undone", 3)
                raise ZeroDivisionError
        async with tx.transaction():
            await tx.publish(arrived.name, "Undone", 4)
            roll_back()
        async with relay.transaction(client) as inner:
            last = await inner.publish(arrived.name, "Done", 5)
    await eventually(lambda: statuses(outbox_url) == {"published": 2})
    assert sorted(arrived.ids()) == sorted([str(first), str(last)])


async def test_a_savepoint_that_is_not_the_relays_takes_back_its_events_too(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay(revive_every=RelaySettings().lease)
    async with relay.transaction(client) as tx:
        with pytest.raises(ZeroDivisionError):
            async with client.transaction():
                await tx.publish(arrived.name, "Undone", 1)
                raise ZeroDivisionError
        async with client.transaction():
            kept = await tx.publish(arrived.name, "Done", 2)
    await eventually(lambda: arrived.ids() == [str(kept)])
    await eventually(lambda: statuses(outbox_url) == {"published": 1})


@pytest.mark.parametrize("end", ["rollback", "abort work", "savepoint a; rollback to a; rollback", "commit"])
async def test_a_transaction_that_a_statement_has_ended_publishes_nothing_and_says_so(
    start_relay, client, queue, outbox_url, end
):
    arrived = queue()
    relay = await start_relay()
    with pytest.raises(OutboxError, match="a statement has ended the transaction inside of its block"):
        async with relay.transaction(client) as tx:
            await tx.publish(arrived.name, "Undone", 1)
            await tx.execute(end)
    async with relay.transaction(client) as tx:
        await tx.execute(end)
        with pytest.raises(OutboxError, match="a statement has ended the transaction inside of its block"):
            await tx.publish(arrived.name, "Undone", 2)
    async with relay.transaction(client) as tx:
        kept = await tx.publish(arrived.name, "Done", 3)
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    assert arrived.ids() == [str(kept)]


async def test_a_connection_of_the_other_kind_is_refused_with_the_method_to_use(start_relay, client, outbox_url):
    relay = await start_relay()
    with psycopg.connect(outbox_url) as connection, pytest.raises(OutboxError, match="use transaction_sync with it"):
        relay.transaction(connection)
    with pytest.raises(OutboxError, match="use transaction with it"):
        relay.transaction_sync(client)


async def test_a_transaction_that_is_not_the_relays_is_refused_and_stays_as_it_was(start_relay, client):
    relay = await start_relay()
    async with client.transaction():
        await client.execute("create table orders (id int)")
        with pytest.raises(OutboxError, match="not the relay's"):
            async with relay.transaction(client):
                pass
        await client.execute("insert into orders values (1)")
    assert await (await client.execute("select id from orders")).fetchall() == [(1,)]


async def test_a_connection_to_another_database_is_refused_and_events_of_it_stay_there(start_relay, queue, postgres18):
    arrived = queue()
    relay = await start_relay()
    with fresh_database(postgres18.url) as other:
        prepare_outbox(other)
        said = r"another database, '\w+', than .* a relay of its own, or write its events with outbox\.publish"
        async with await psycopg.AsyncConnection.connect(other) as client:
            for _ in range(2):
                with pytest.raises(OutboxError, match=said):
                    async with relay.transaction(client):
                        pytest.fail("it has begun")
            assert client.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            await publish_plainly(client, arrived.name, "There", {})
            await client.commit()
        with psycopg.connect(other) as sync:
            with pytest.raises(OutboxError, match=said), relay.transaction_sync(sync):
                pytest.fail("it has begun")
        assert statuses(other) == {"pending": 1}
    assert arrived.ids() == []


async def test_before_the_relay_runs_events_of_any_database_are_written_for_whoever_finds_them(
    outbox_url, rabbitmq, postgres18
):
    relay = OutboxRelay(outbox_url, RabbitmqAccess(url=rabbitmq.url))
    with fresh_database(postgres18.url) as other:
        prepare_outbox(other)
        async with await psycopg.AsyncConnection.connect(other) as client, relay.transaction(client) as tx:
            await tx.publish("orders", "There", {})
            await relay.start()
        assert [row["locked_by"] for row in rows(other, "locked_by")] == [None]
    await relay.stop()


async def test_which_database_it_leads_to_is_asked_of_a_connection_once_and_in_no_transaction_of_the_callers(
    start_relay, client, connection, monkeypatch
):
    relay = await start_relay()
    asked = {name: Mock(wraps=getattr(identity, name)) for name in ("fetch", "fetch_sync")}
    for name, ask in asked.items():
        monkeypatch.setattr(identity, name, ask)
    for _ in range(3):
        async with relay.transaction(client) as tx:
            await tx.execute("set transaction isolation level serializable")
        with relay.transaction_sync(connection) as sync:
            sync.execute("set transaction isolation level serializable")
    assert sum(ask.call_count for ask in asked.values()) == 2


@pytest.mark.parametrize("is_granted", [True, False])
async def test_a_role_without_the_rights_is_told_what_it_lacks(start_relay, connection, outbox_url, is_granted):
    connection.execute("create role clerk login password 'secret'")
    if is_granted:
        execute_sync(connection, statements.grant_writing("clerk"))
    url = psycopg.conninfo.make_conninfo(outbox_url, user="clerk", password="secret")
    relay = await start_relay()
    said = r"^role clerk may not relay events \(permission denied .*\); .*`headwater outbox init --grant-relay clerk`$"
    try:
        for count in (1, 2):
            async with await psycopg.AsyncConnection.connect(url) as client:
                with pytest.raises(OutboxError, match=said):
                    async with relay.transaction(client) as tx:
                        await tx.publish_many([Event("orders", "Refused", {})] * count)
            with psycopg.connect(url) as sync:
                with pytest.raises(OutboxError, match=said), relay.transaction_sync(sync) as sync_tx:
                    sync_tx.publish_many([Event("orders", "Refused", {})] * count)
    finally:
        connection.execute("drop owned by clerk")
        connection.execute("drop role clerk")
    assert statuses(outbox_url) == {}


async def test_a_database_without_an_outbox_is_told_what_to_run(database, rabbitmq):
    relay = OutboxRelay(database, RabbitmqAccess(url=rabbitmq.url))
    async with await psycopg.AsyncConnection.connect(database) as client:
        with pytest.raises(SchemaError, match=r"no outbox.*run `headwater outbox init` first"):
            async with relay.transaction(client) as tx:
                await tx.publish("orders", "Refused", {})
    with psycopg.connect(database) as sync:
        with pytest.raises(SchemaError, match="no outbox"), relay.transaction_sync(sync) as sync_tx:
            sync_tx.publish("orders", "Refused", {})


async def test_what_a_trigger_of_the_application_may_not_do_is_not_taken_for_ours(start_relay, client, connection):
    connection.execute("create table private (id int)")
    connection.execute(
        "create function spy() returns trigger language plpgsql as $$ begin perform from nowhere.near; return new; end $$"
    )
    connection.execute(
        "create constraint trigger spy after insert on private deferrable initially deferred "
        "for each row execute function spy()"
    )
    relay = await start_relay()
    with pytest.raises(psycopg.errors.UndefinedTable, match=r"nowhere\.near"):
        async with relay.transaction(client) as tx:
            await tx.execute("insert into private values (1)")
            await tx.publish("orders", "Undone", {})


async def test_an_event_that_cannot_be_written_leaves_the_transaction_as_it_was(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay()
    async with relay.transaction(client) as tx:
        await tx.execute("create table orders (id int)")
        for payload in (object(), float("nan"), "\ud800", b"{"):
            with pytest.raises(OutboxError):
                await tx.publish(arrived.name, "Bad", payload)
        good = await tx.publish(arrived.name, "Good", {})
    await eventually(lambda: arrived.ids() == [str(good)])
    assert len(rows(outbox_url)) == 1


async def test_an_insert_that_fails_reaches_the_caller_and_the_connection_is_fit_for_more(start_relay, client, queue):
    arrived = queue()
    relay = await start_relay()
    await client.execute("alter table headwater.outbox_message add constraint no_bad check (type <> 'Bad')")
    with pytest.raises(psycopg.errors.CheckViolation):
        async with relay.transaction(client) as tx:
            await tx.publish(arrived.name, "Bad", {})
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        async with relay.transaction(client) as tx:
            await tx.publish(arrived.name, "Lost", {})
            with pytest.raises(psycopg.errors.DivisionByZero):
                await tx.execute("select 1 / 0")
    async with relay.transaction(client) as tx:
        good = await tx.publish(arrived.name, "Good", {})
    await eventually(lambda: arrived.ids() == [str(good)])


async def test_nothing_is_published_in_a_transaction_that_has_ended(start_relay, client):
    relay = await start_relay()
    async with relay.transaction(client) as tx:
        pass
    with pytest.raises(OutboxError, match="has ended"):
        await tx.publish("orders", "Late", {})


async def test_many_events_of_one_transaction_arrive_in_their_order(start_relay, client, queue, outbox_url):
    arrived = queue()
    # More than go to the broker at once.
    relay = await start_relay(window=200)
    async with relay.transaction(client) as tx:
        ids = await tx.publish_many([Event(arrived.name, "Counted", number) for number in range(500)])
    await eventually(lambda: statuses(outbox_url) == {"published": 500})
    assert arrived.ids() == [str(id_) for id_ in ids]
    assert [row["id"] for row in rows(outbox_url)] == ids


async def test_sync_transactions_in_threads_hand_over_too(start_relay, outbox_url, queue):
    arrived = queue()
    relay = await start_relay()

    def work() -> list[str]:
        with psycopg.connect(outbox_url) as connection:
            with relay.transaction_sync(connection) as tx:
                tx.execute("select 1")
                kept = [tx.publish(arrived.name, "Done", 1)]
                with pytest.raises(ZeroDivisionError), tx.transaction():
                    tx.publish(arrived.name, "Undone", 2)
                    raise ZeroDivisionError
                with relay.transaction_sync(connection) as inner:
                    kept += inner.publish_many([Event(arrived.name, "Done", 3)])
            return [str(id_) for id_ in kept]

    done = await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
    await eventually(lambda: sorted(arrived.ids()) == sorted(id_ for ids in done for id_ in ids))
    await eventually(lambda: statuses(outbox_url) == {"published": 8})
    assert relay.counts.revived == 0


async def test_events_written_by_others_are_handed_over_by_prepare_and_hand_over(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay()
    (leased,) = relay.prepare([Event(arrived.name, "Done", {})])
    cursor = await client.execute(
        "insert into headwater.outbox_message (id, topic, type, key, payload, headers, locked_by, locked_until) "
        "values (%(id)s, %(topic)s, %(type)s, %(key)s, %(payload)s, %(headers)s, %(locked_by)s, "
        "clock_timestamp() + %(lease_seconds)s * interval '1 second') returning created_at",
        leased.row,
    )
    leased.created_at = (await cursor.fetchone())[0]
    relay.hand_over([leased])
    await eventually(lambda: arrived.ids() == [str(leased.event.id)])
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    assert relay.counts.revived == 0


async def test_a_bare_insert_from_any_language_is_found(start_relay, client, queue, outbox_url):
    arrived = queue()
    await start_relay()
    await client.execute(
        "insert into headwater.outbox_message (topic, type, payload) values (%s, 'Bare', '{\"a\":  1}')", [arrived.name]
    )
    async with client.transaction():
        await publish_plainly(client, arrived.name, "Plain", {"b": 2})
    await eventually(lambda: len(arrived.ids()) == 2)
    assert arrived.bodies[0] == b'{"a":  1}', "as it was written"
    await eventually(lambda: statuses(outbox_url) == {"published": 2})


async def test_what_waits_in_the_table_is_sent_at_the_start(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = OutboxRelay(outbox_url, "amqp://localhost")
    async with relay.transaction(client) as tx:
        ids = await tx.publish_many([Event(arrived.name, "Early", number) for number in range(600)])
    assert {row["locked_by"] for row in rows(outbox_url, "locked_by")} == {None}, "no relay runs, so there is no lease"
    running = await start_relay(claim_rows=100)
    await eventually(lambda: statuses(outbox_url) == {"published": 600})
    assert sorted(arrived.ids()) == sorted(map(str, ids))
    assert running.counts.revived == 600


async def test_a_full_intake_harms_nobody_and_its_events_are_sent_from_the_table(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay(intake_events=10)
    async with relay.transaction(client) as tx:
        ids = await tx.publish_many([Event(arrived.name, "Counted", number) for number in range(300)])
    await eventually(lambda: statuses(outbox_url) == {"published": 300})
    assert sorted(arrived.ids()) == sorted(map(str, ids))
    assert relay.counts.let_go == 300
    assert relay.counts.revived == 300


async def test_a_database_without_the_outbox_is_refused(database, rabbitmq):
    with pytest.raises(SchemaError, match="headwater outbox init"):
        await OutboxRelay(database, RabbitmqAccess(url=rabbitmq.url)).start()


async def test_an_idle_relay_writes_nothing(start_relay, client, outbox_url):
    relay = await start_relay(revive_every=RelaySettings().save_every)
    await eventually(lambda: len(partitions(outbox_url)) == 8)

    async def is_still() -> bool:
        swept = relay.counts.sweeps
        await eventually(lambda: relay.counts.sweeps > swept)
        before = await (await client.execute("select pg_current_wal_insert_lsn()")).fetchone()
        await eventually(lambda: relay.counts.sweeps >= swept + 6)
        return bool(await (await client.execute("select pg_current_wal_insert_lsn()")).fetchone() == before)

    # The server itself writes something four times a minute at most.
    assert await is_still() or await is_still()


async def test_an_id_of_ones_own_is_kept(start_relay, client, queue):
    arrived, own = queue(), uuid.uuid4()
    relay = await start_relay()
    async with relay.transaction(client) as tx:
        assert await tx.publish(arrived.name, "Own", {}, id=own) == own
    await eventually(lambda: arrived.ids() == [str(own)])


async def test_one_event_costs_no_round_trip_more_than_its_transaction(start_relay, client, queue, outbox_url):
    """Insert and commit are one message, and nothing follows: no commit that finds no transaction."""
    arrived, notices = queue(), []
    client.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    relay = await start_relay()
    async with relay.transaction(client) as tx:
        await tx.execute("create table orders (id int, constraint late unique (id) deferrable initially deferred)")
        await tx.publish(arrived.name, "Done", {})
    assert client.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert notices == []
    with pytest.raises(psycopg.errors.UniqueViolation):
        async with relay.transaction(client) as tx:
            await tx.execute("insert into orders values (1), (1)")
            await tx.publish(arrived.name, "Undone", {})
    async with relay.transaction(client) as tx:
        await tx.publish(arrived.name, "Done", {"it's": "a \\ %s %(x)s ü"})
    await eventually(lambda: statuses(outbox_url) == {"published": 2})
    assert len(arrived.ids()) == 2
    assert arrived.bodies[-1] == '{"it\'s":"a \\\\ %s %(x)s ü"}'.encode()


async def test_in_a_pipeline_of_the_application_events_are_written_too(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay()
    async with client.pipeline():
        async with relay.transaction(client) as tx:
            await tx.execute("select 1")
            await tx.publish(arrived.name, "Done", {})
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    assert len(arrived.ids()) == 1


async def test_a_commit_that_fails_in_a_pipeline_sends_nothing(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay()
    await client.execute("create table orders (id int, constraint late unique (id) deferrable initially deferred)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        async with client.pipeline(), relay.transaction(client) as tx:
            await tx.execute("insert into orders values (1), (1)")
            await tx.publish(arrived.name, "Undone", 1)
    async with relay.transaction(client) as tx:
        kept = await tx.publish(arrived.name, "Done", 2)
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    assert arrived.ids() == [str(kept)]


class SlowToAnswer(Proxy):
    """Keeps back the answers to a commit until they are let through."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lets_through = threading.Event()
        self.lets_through.set()

    def _pump(self, source, target, frozen):
        with suppress(OSError):
            is_answer = source.getpeername()[1] == self._target[1]
            while data := source.recv(65536):
                if b"commit" in data:
                    self.lets_through.clear()
                if is_answer:
                    self.lets_through.wait()
                target.sendall(data)
            target.shutdown(SHUT_RDWR)


@pytest.mark.parametrize("events", [1, 2])
async def test_a_request_cancelled_at_its_commit_hands_over_what_it_has_committed(start_relay, queue, outbox_url, events):
    """The server has committed, and the answer is on its way when the cancellation comes."""
    arrived = queue()
    relay = await start_relay(revive_every=RelaySettings().lease)
    with SlowToAnswer(outbox_url) as proxy:
        client = await psycopg.AsyncConnection.connect(proxy.url, autocommit=True)

        async def request() -> None:
            async with relay.transaction(client) as tx:
                await tx.publish_many([Event(arrived.name, "Done", number) for number in range(events)])

        async with client:
            task = asyncio.create_task(request())
            await eventually(lambda: statuses(outbox_url) == {"pending": events})
            task.cancel()
            # It has asked the server to give it up by now.
            await asyncio.sleep(0)
            proxy.lets_through.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            await eventually(lambda: statuses(outbox_url) == {"published": events})
            assert client.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert len(arrived.ids()) == events
    assert relay.counts.revived == 0, "it was handed over"


async def test_a_request_cancelled_before_its_commit_is_done_is_rolled_back(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay()

    async def request() -> None:
        async with relay.transaction(client) as tx:
            await tx.publish(arrived.name, "Undone", 1)

    with psycopg.connect(outbox_url) as holder:
        holder.execute("lock table headwater.outbox_message in share mode")
        task = asyncio.create_task(request())
        await eventually(lambda: is_waiting(outbox_url))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        holder.rollback()
    async with relay.transaction(client) as tx:
        kept = await tx.publish(arrived.name, "Done", 2)
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    assert arrived.ids() == [str(kept)]


def is_waiting(url: str) -> bool:
    """Whether somebody who writes an event waits for a lock."""
    query = (
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() "
        "and query like '%insert into headwater.outbox%'"
    )
    with psycopg.connect(url) as connection:
        return bool(connection.execute(query).fetchall()[0][0])
