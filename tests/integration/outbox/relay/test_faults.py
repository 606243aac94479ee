"""What goes wrong with a broker or the database, and that nothing is lost by it."""

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from prometheus_client import CollectorRegistry

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.broker import NatsBrokerSettings
from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.brokers.rabbitmq.broker import RabbitmqBroker
from headwater.brokers.registry import NatsMessages
from headwater.errors import BrokerError, RelayFailed, SettingsError
from headwater.outbox import Event, OutboxRelay, RelaySettings
from headwater.outbox.relay.availability import Availability
from headwater.outbox.relay.database import Database
from headwater.outbox.relay.failures import Failures
from headwater.outbox.relay.messages import as_messages
from headwater.outbox.relay.metrics import RelayMetrics
from headwater.outbox.relay.outcome import Judge
from headwater.outbox.relay.reviver import Reviver
from headwater.outbox.relay.saver import Saver
from headwater.outbox.served import find_served
from tests.support.outbox.arrivals import eventually, rows, statuses
from tests.support.servers.tcp_proxy import Proxy

pytestmark = pytest.mark.timeout(90)

SECOND = timedelta(seconds=1)


async def publish_many(relay, client, topic, count):
    async with relay.transaction(client) as tx:
        return [str(id_) for id_ in await tx.publish_many([Event(topic, "Counted", number) for number in range(count)])]


async def test_a_broker_that_is_away_at_the_start_gets_everything_when_it_comes(
    start_relay, client, queue, outbox_url, rabbitmq
):
    arrived = queue()
    with Proxy(rabbitmq.url) as proxy:
        proxy.refuse = True
        relay = await start_relay(RabbitmqAccess(url=proxy.url))
        assert not relay.counts.is_broker_up
        sent = await publish_many(relay, client, arrived.name, 40)
        assert {row["locked_by"] for row in rows(outbox_url, "locked_by")} == {None}, (
            "while it is away, rows are written for whoever finds them"
        )
        proxy.refuse = False
        await eventually(lambda: statuses(outbox_url) == {"published": 40})
    assert sorted(arrived.ids()) == sorted(sent), "each once"
    assert {row["attempts"] for row in rows(outbox_url, "attempts")} == {1}, "an absence is no attempt"


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_broker_is_known_to_be_there_when_it_was_reached_also_with_nothing_to_send(
    start_relay, rabbitmq, is_ordered
):
    assert (await start_relay(order_by_key=is_ordered)).counts.is_broker_up
    with Proxy(rabbitmq.url) as proxy:
        proxy.refuse = True
        relay = await start_relay(RabbitmqAccess(url=proxy.url), order_by_key=is_ordered)
        assert relay.is_running
        assert not relay.counts.is_broker_up
        proxy.refuse = False
        await eventually(lambda: relay.counts.is_broker_up)


async def test_a_broker_that_goes_away_in_the_middle_loses_nothing_and_kills_nothing(
    start_relay, client, queue, outbox_url, rabbitmq
):
    arrived = queue()
    sent: list[str] = []
    with Proxy(rabbitmq.url) as proxy:
        relay = await start_relay(
            RabbitmqAccess(url=proxy.url), lease=timedelta(seconds=4), confirm_timeout=SECOND, max_attempts=4
        )
        for round_ in range(3):
            sent += await publish_many(relay, client, arrived.name, 50)
            proxy.refuse = True
            proxy.cut()
            sent += await publish_many(relay, client, arrived.name, 50)
            await eventually(lambda: not relay.counts.is_broker_up)
            sent += await publish_many(relay, client, arrived.name, 50)
            if round_ == 0:
                # Longer than the lease: what is in memory is given back, not sent late.
                await eventually(lambda: relay.counts.let_go >= 50 and relay.fills["intake"] == 0)
            proxy.refuse = False
            await eventually(lambda: relay.counts.is_broker_up)
        await eventually(lambda: statuses(outbox_url) == {"published": 450}, seconds=30)
    assert set(arrived.ids()) == set(sent)
    assert relay.counts.dead == 0


async def test_a_broker_that_never_confirms_holds_up_nobody_and_its_events_are_sent_again(
    start_relay, client, queue, outbox_url, rabbitmq
):
    arrived = queue()
    with Proxy(rabbitmq.url) as proxy:
        relay = await start_relay(RabbitmqAccess(url=proxy.url), confirm_timeout=SECOND)
        sent = await publish_many(relay, client, arrived.name, 1)
        await eventually(lambda: statuses(outbox_url) == {"published": 1})
        proxy.freeze()
        sent += await publish_many(relay, client, arrived.name, 10)
        await eventually(lambda: statuses(outbox_url) == {"published": 11})
    assert set(arrived.ids()) == set(sent)
    assert relay.counts.nacks == 10
    assert [row["attempts"] for row in rows(outbox_url, "attempts")] == [1] + [2] * 10


async def test_nacks_are_tried_again_until_there_is_room(start_relay, client, queue, outbox_url):
    arrived = queue(x_max_length=5, x_overflow="reject-publish")
    relay = await start_relay(retry_wait=timedelta(milliseconds=50), longest_wait=timedelta(milliseconds=200))
    sent = await publish_many(relay, client, arrived.name, 25)
    await eventually(lambda: relay.counts.postponed >= 20)
    waiting = await eventually(lambda: rows(outbox_url, "attempts, error", "status = 'pending' and locked_by is null"))
    assert all("does not take messages" in row["error"] and row["attempts"] >= 3 for row in waiting)
    await eventually(lambda: arrived.ids() and statuses(outbox_url) == {"published": 25}, seconds=30)
    assert {row["error"] for row in rows(outbox_url, "error")} == {None}, "what is published has not failed"
    assert sorted(arrived.ids()) == sorted(sent), "a nack is no publish, so that nothing comes twice"


async def test_after_so_many_attempts_an_event_is_dead_and_kept_with_its_reason(start_relay, client, queue, outbox_url):
    full = queue(x_max_length=1, x_overflow="reject-publish")
    relay = await start_relay(max_attempts=5, retry_wait=timedelta(milliseconds=10), longest_wait=timedelta(milliseconds=20))
    await publish_many(relay, client, full.name, 4)
    await eventually(lambda: statuses(outbox_url) == {"published": 1, "dead": 3})
    for row in rows(outbox_url, "attempts, error, locked_by", "status = 'dead'"):
        assert row["attempts"] == 5
        assert row["error"].startswith("given up after 5 attempts: ")
        assert row["locked_by"] is None
    assert relay.counts.dead == 3


async def test_an_unroutable_event_is_dead_at_once_and_its_neighbours_arrive(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay()
    async with relay.transaction(client) as tx:
        sent = [str(await tx.publish(arrived.name, "Good", 1))]
        await tx.publish("no-such-queue", "Lost", 2)
        sent.append(str(await tx.publish(arrived.name, "Good", 3)))
    await eventually(lambda: statuses(outbox_url) == {"published": 2, "dead": 1})
    assert sorted(arrived.ids()) == sorted(sent)
    (dead,) = rows(outbox_url, "attempts, error", "status = 'dead'")
    assert dead["attempts"] == 1
    assert "unroutable" in dead["error"]
    assert relay.counts.returns == 1


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_events_that_fail_are_said_with_the_reason_and_the_remedy(
    start_relay, client, queue, outbox_url, caplog, is_ordered
):
    full = queue(x_max_length=1, x_overflow="reject-publish")
    relay = await start_relay(order_by_key=is_ordered)
    await publish_many(relay, client, full.name, 2)
    await publish_many(relay, client, "no-such-queue", 3)
    await eventually(lambda: relay.counts.dead == 3 and relay.counts.nacks)
    await relay.stop()
    said = [record.getMessage() for record in caplog.records if record.name == Failures.__module__]
    dead = [sentence for sentence in said if " dead: unroutable: " in sentence]
    assert sum(int(sentence.split()[0]) for sentence in dead) == 3
    assert all("`headwater outbox dead` lists dead events" in sentence for sentence in dead)
    nacked = [sentence for sentence in said if "does not take messages" in sentence]
    assert {sentence.split(":")[0] for sentence in nacked} == {"1 event was not taken"}, "however often it was tried"
    assert all("`headwater outbox status` tells how many wait" in sentence for sentence in nacked)


async def test_a_channel_that_the_server_closes_kills_no_event_until_its_attempts_are_used_up(
    start_relay, client, outbox_url, rabbitmq
):
    """A missing exchange is told by closing the channel; when it is there, everything goes to it."""
    relay = await start_relay(
        RabbitmqAccess(url=rabbitmq.url, exchange="late-exchange", mandatory=False),
        retry_wait=timedelta(milliseconds=50),
        longest_wait=timedelta(milliseconds=200),
        max_attempts=1000,
    )
    await publish_many(relay, client, "orders", 20)
    failed = await eventually(lambda: rows(outbox_url, "error", "error is not null"))
    assert "late-exchange" in failed[0]["error"]
    with rabbitmq.channel() as channel:
        channel.exchange_declare("late-exchange", durable=True)
    await eventually(lambda: statuses(outbox_url) == {"published": 20}, seconds=30)


async def test_a_message_that_no_connection_survives_does_not_take_its_neighbours_with_it(
    start_relay, client, queue, outbox_url, rabbitmq
):
    arrived = queue()
    with Poisoned(rabbitmq.url, b"poison") as proxy:
        relay = await start_relay(
            RabbitmqAccess(url=proxy.url),
            confirm_timeout=SECOND,
            retry_wait=timedelta(milliseconds=50),
            longest_wait=timedelta(milliseconds=100),
            max_attempts=8,
        )
        async with relay.transaction(client) as tx:
            sent = [str(await tx.publish(arrived.name, "Good", number)) for number in range(30)]
            await tx.publish(arrived.name, "Bad", "poison")
            sent += [str(await tx.publish(arrived.name, "Good", number)) for number in range(30)]
        await eventually(lambda: statuses(outbox_url) == {"published": 60, "dead": 1}, seconds=60)
    assert set(arrived.ids()) == set(sent)


class Poisoned(Proxy):
    """Cuts the connections through it when some bytes come by."""

    def __init__(self, url: str, poison: bytes) -> None:
        super().__init__(url)
        self._poison = poison

    def _pump(self, source, target, frozen):
        with suppress(OSError):
            while data := source.recv(65536):
                if self._poison in data:
                    self.cut()
                target.sendall(data)


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_credentials_that_are_refused_at_the_start_are_said_by_it_and_the_table_is_left_alone(
    outbox_url, connection, client, rabbitmq, is_ordered
):
    access = RabbitmqAccess(url=rabbitmq.url.replace(rabbitmq.password, "wrong"))
    relay = OutboxRelay(outbox_url, access, RelaySettings(order_by_key=is_ordered))
    for _ in range(2):
        with pytest.raises(BrokerError, match=r"^RabbitMQ at \S+ does not let us in; check user and password in its url$"):
            async with relay:
                pytest.fail("it has begun")
    assert not relay.is_running
    assert find_served(connection) is None
    async with relay.transaction(client) as tx:
        await tx.publish("orders", "Kept", {})
    assert [row["locked_by"] for row in rows(outbox_url, "locked_by")] == [None]


async def test_files_of_tls_that_are_not_there_are_said_by_the_start(outbox_url):
    relay = OutboxRelay(outbox_url, RabbitmqAccess(url="amqps://127.0.0.1:1", tls_ca="no-such-file.pem"))
    with pytest.raises(SettingsError, match=r"no-such-file\.pem"):
        await relay.start()


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_credentials_that_come_later_than_the_broker_are_waited_for(
    start_relay, client, queue, outbox_url, rabbitmq, is_ordered, caplog
):
    caplog.set_level(logging.INFO)
    arrived = queue()
    url = rabbitmq.url.replace(f"headwater:{rabbitmq.password}", f"late{is_ordered}:password")
    with Proxy(url) as proxy:
        proxy.refuse = True
        relay = await start_relay(RabbitmqAccess(url=proxy.url), order_by_key=is_ordered, restarts=0)
        sent = await publish_many(relay, client, arrived.name, 3)
        proxy.refuse = False
        await eventually(lambda: any("does not let us in" in message for message in caplog.messages))
        assert (relay.is_running, relay.counts.is_broker_up) == (True, False)
        rabbitmq.control("add_user", f"late{is_ordered}", "password")
        rabbitmq.control("set_permissions", f"late{is_ordered}", ".*", ".*", ".*")
        await eventually(lambda: statuses(outbox_url) == {"published": 3}, seconds=40)
        await eventually(lambda: relay.counts.is_broker_up)
        assert sorted(arrived.ids()) == sorted(sent)
        await relay.stop()
    rabbitmq.control("delete_user", f"late{is_ordered}")
    assert relay.counts.restarts == 0
    said = [record.getMessage() for record in caplog.records if record.name == Availability.__module__]
    assert ["does not let us in" in message for message in said] == [False, True, False]
    assert said[2].startswith("the broker is back")


async def test_a_block_ends_with_the_failure_of_its_relay_unless_somebody_was_told(outbox_url, rabbitmq, monkeypatch):
    async def broken(self, *given):
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(Reviver, "_claim", broken)
    relay = OutboxRelay(outbox_url, RabbitmqAccess(url=rabbitmq.url), RelaySettings(restarts=0, stop_within=SECOND))
    with pytest.raises(RelayFailed, match="no luck"):
        async with relay:
            await eventually(lambda: not relay.is_running)
    with pytest.raises(KeyError, match="of the block"):
        async with relay:
            await eventually(lambda: not relay.is_running)
            raise KeyError("of the block")
    async with relay:
        with pytest.raises(RelayFailed, match="no luck"):
            await relay.wait()


async def test_statuses_wait_while_the_database_is_away(start_relay, client, queue, outbox_url):
    arrived = queue()
    with Proxy(outbox_url) as proxy:
        relay = await start_relay(url=proxy.url, save_every=timedelta(milliseconds=300))
        proxy.refuse = True
        proxy.cut()
        sent = await publish_many(relay, client, arrived.name, 30)
        await eventually(lambda: relay.counts.published == 30)
        sent += await publish_many(relay, client, arrived.name, 30)
        await eventually(lambda: relay.counts.published == 60)
        assert statuses(outbox_url) == {"pending": 60}
        proxy.refuse = False
        await eventually(lambda: statuses(outbox_url) == {"published": 60})
    assert sorted(arrived.ids()) == sorted(sent), "each once: what is known is not forgotten"
    assert relay.counts.suspected_duplicates == 0


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_database_that_is_away_is_said_once_and_seen_by_monitors_and_so_is_its_return(
    start_relay, outbox_url, caplog, is_ordered
):
    caplog.set_level(logging.INFO)
    with Proxy(outbox_url) as proxy:
        relay = await start_relay(url=proxy.url, order_by_key=is_ordered)
        registry = CollectorRegistry()
        registry.register(RelayMetrics(relay))

        def figures():
            names = ("database_up", "oldest_unpublished_seconds")
            return [registry.get_sample_value(f"headwater_relay_{name}") for name in names]

        await eventually(lambda: figures() == [1, 0])
        proxy.refuse = True
        proxy.cut()
        await eventually(lambda: figures()[0] == 0)
        assert 0 < figures()[1] < figures()[1], "nobody knows what was written since"
        proxy.refuse = False
        await eventually(lambda: figures() == [1, 0])
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == Database.__module__]
    assert [level for level, _ in said] == ["WARNING", "INFO"]
    assert "no connection to PostgreSQL" in said[0][1] or "did not do what was asked" in said[0][1]
    assert "the database is back" in said[1][1]


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_database_that_is_back_is_known_while_the_broker_is_away(
    start_relay, client, outbox_url, rabbitmq, is_ordered
):
    with Proxy(outbox_url) as database, Proxy(rabbitmq.url) as broker:
        relay = await start_relay(
            RabbitmqAccess(url=broker.url),
            url=database.url,
            order_by_key=is_ordered,
            revive_every=timedelta(milliseconds=50),
        )
        await eventually(lambda: relay.counts.oldest_seconds == 0)
        database.refuse = broker.refuse = True
        database.cut()
        broker.cut()
        await eventually(lambda: not relay.counts.is_database_up)
        await client.execute("insert into headwater.outbox_message (topic, type, payload) values ('orders', 'Bare', '1')")
        database.refuse = False
        await eventually(lambda: relay.counts.is_database_up and relay.counts.oldest_seconds > 0)


async def test_no_more_is_sent_than_can_be_remembered_while_the_database_is_away(start_relay, client, queue, outbox_url):
    arrived = queue()
    with Proxy(outbox_url) as proxy:
        relay = await start_relay(url=proxy.url, save_events=50, window=10, save_every=timedelta(milliseconds=300))
        proxy.refuse = True
        proxy.cut()
        sent = await publish_many(relay, client, arrived.name, 200)
        await eventually(lambda: relay.counts.published == 50)
        await asyncio.to_thread(arrived.ids)
        assert relay.counts.published == 50
        proxy.refuse = False
        await eventually(lambda: statuses(outbox_url) == {"published": 200})
    assert sorted(arrived.ids()) == sorted(sent)


async def test_backends_that_are_terminated_are_replaced(start_relay, client, queue, outbox_url):
    arrived = queue()
    relay = await start_relay(save_every=timedelta(milliseconds=200))
    sent = await publish_many(relay, client, arrived.name, 10)
    others = "datname = current_database() and pid <> pg_backend_pid()"
    await client.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {others}".encode())  # noqa: S608
    sent += await publish_many(relay, client, arrived.name, 10)
    await client.execute(
        "insert into headwater.outbox_message (topic, type, payload) values (%s, 'Bare', '1')", [arrived.name]
    )
    await eventually(lambda: statuses(outbox_url) == {"published": 21})
    assert set(arrived.ids()) > set(sent)


async def test_a_row_that_is_published_already_when_it_is_marked_is_a_suspected_duplicate(
    start_relay, client, queue, outbox_url
):
    arrived = queue()
    # Long enough for the update to come before.
    relay = await start_relay(save_every=4 * SECOND)
    await publish_many(relay, client, arrived.name, 2)
    await client.execute("update headwater.outbox_message set status = 'published'")
    await eventually(lambda: relay.counts.saves == 1)
    assert relay.counts.suspected_duplicates == 2


async def test_nats_is_served_as_well(start_relay, client, nats, outbox_url):
    broker = NatsMessages(access=NatsAccess(url=nats.url), settings=NatsBrokerSettings(stream="relayed"))
    relay = await start_relay(broker)
    await publish_many(relay, client, "relayed.orders", 100)
    await eventually(lambda: statuses(outbox_url) == {"published": 100})
    assert relay.counts.published == 100


async def test_an_event_that_breaks_the_code_of_a_driver_is_dead_and_its_neighbours_arrive(
    start_relay, client, queue, outbox_url, monkeypatch
):
    def fragile(entries):
        if any("poison" in one.payload for one in entries):
            raise ValueError("cannot digest \0 this")
        return as_messages(entries)

    monkeypatch.setattr("headwater.outbox.relay.thread.as_messages", fragile)
    arrived = queue()
    relay = await start_relay(
        retry_wait=timedelta(milliseconds=50), longest_wait=timedelta(milliseconds=100), max_attempts=8
    )
    async with relay.transaction(client) as tx:
        await tx.publish(arrived.name, "Bad", "poison")
        sent = [str(await tx.publish(arrived.name, "Good", number)) for number in range(30)]
    await eventually(lambda: statuses(outbox_url) == {"published": 30, "dead": 1}, seconds=30)
    assert sorted(arrived.ids()) == sorted(sent)
    assert rows(outbox_url, "error", "status = 'dead'")[0]["error"] == (
        "given up after 8 attempts: ValueError: cannot digest  this"
    )
    assert relay.counts.restarts == 0


async def test_what_a_task_had_when_it_failed_is_found_in_the_table(start_relay, client, queue, outbox_url, monkeypatch):
    failures = iter([ZeroDivisionError("no luck")])
    judge = Judge.judge

    def unlucky(self, *given):
        for failure in failures:
            raise failure
        return judge(self, *given)

    monkeypatch.setattr(Judge, "judge", unlucky)
    arrived = queue()
    relay = await start_relay(lease=timedelta(seconds=4), confirm_timeout=SECOND, revive_every=timedelta(milliseconds=100))
    sent = await publish_many(relay, client, arrived.name, 5)
    await eventually(lambda: statuses(outbox_url) == {"published": 5})
    assert relay.counts.restarts == 1
    assert set(arrived.ids()) == set(sent)


async def test_a_saver_that_fails_is_started_again_with_what_it_had(start_relay, client, queue, outbox_url, monkeypatch):
    failures = iter([ZeroDivisionError("no luck"), ZeroDivisionError("no luck")])
    save = Saver._save_published

    async def unlucky(self, batch):
        for failure in failures:
            raise failure
        await save(self, batch)

    monkeypatch.setattr(Saver, "_save_published", unlucky)
    arrived = queue()
    relay = await start_relay()
    sent = await publish_many(relay, client, arrived.name, 5)
    await eventually(lambda: statuses(outbox_url) == {"published": 5})
    assert relay.counts.restarts == 2
    assert sorted(arrived.ids()) == sorted(sent), "each once"
    assert relay.counts.suspected_duplicates == 0


async def test_a_reviver_that_fails_is_started_again_and_finds_what_waits(
    start_relay, client, queue, outbox_url, monkeypatch
):
    failures = iter([ZeroDivisionError("no luck"), ZeroDivisionError("no luck")])
    claim = Reviver._claim

    async def unlucky(self, *given):
        for failure in failures:
            raise failure
        return await claim(self, *given)

    arrived = queue()
    relay = await start_relay(revive_every=timedelta(milliseconds=50))
    await eventually(lambda: relay.counts.sweeps)
    monkeypatch.setattr(Reviver, "_claim", unlucky)
    await client.execute(
        "insert into headwater.outbox_message (topic, type, payload) values (%s, 'Bare', '1')", [arrived.name]
    )
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    assert relay.counts.restarts == 2
    assert len(arrived.ids()) == 1


async def test_a_reviver_that_always_fails_ends_the_relay_and_events_wait_for_the_next(
    start_relay, client, queue, outbox_url, monkeypatch
):
    async def broken(self, *given):
        raise ZeroDivisionError("no luck")

    arrived = queue()
    relay = await start_relay(restarts=1, revive_every=timedelta(milliseconds=50))
    sent = await publish_many(relay, client, arrived.name, 5)
    await eventually(lambda: statuses(outbox_url) == {"published": 5})
    with monkeypatch.context() as patched:
        patched.setattr(Reviver, "_claim", broken)
        with pytest.raises(RelayFailed, match="task 'reviver' of the outbox relay failed 2 times"):
            await relay.wait()
    assert not relay.is_running
    sent += await publish_many(relay, client, arrived.name, 5)
    assert statuses(outbox_url) == {"published": 5, "pending": 5}
    await start_relay()
    await eventually(lambda: statuses(outbox_url) == {"published": 10})
    assert sorted(arrived.ids()) == sorted(sent), "each once"


async def test_a_tracing_that_breaks_holds_up_no_event(start_relay, client, queue, outbox_url, monkeypatch):
    class Broken(SpanProcessor):
        failures = 0

        def on_end(self, span):
            if span.name == "send":
                Broken.failures += 1
                raise RuntimeError("the exporter broke")

    provider = TracerProvider()
    provider.add_span_processor(Broken())
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    arrived = queue()
    relay = await start_relay(restarts=0)
    with trace.get_tracer("test").start_as_current_span("request"):
        sent = await publish_many(relay, client, arrived.name, 3)
    await eventually(lambda: statuses(outbox_url) == {"published": 3})
    assert Broken.failures == 3
    assert sorted(arrived.ids()) == sorted(sent), "each once"
    assert relay.is_running


async def test_a_broker_that_is_short_of_memory_is_away_until_it_has_some_and_that_is_said_once(
    start_relay, client, queue, outbox_url, rabbitmq, monkeypatch, caplog
):
    caplog.set_level(logging.INFO)
    checks: list[bool] = []
    check = RabbitmqBroker.check

    def noted(self):
        try:
            check(self)
        except BrokerError:
            checks.append(False)
            raise
        checks.append(True)

    monkeypatch.setattr(RabbitmqBroker, "check", noted)
    arrived = queue()
    relay = await start_relay(lease=timedelta(seconds=4), confirm_timeout=SECOND, max_attempts=4)
    sent = await publish_many(relay, client, arrived.name, 1)
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    await asyncio.to_thread(rabbitmq.control, "set_vm_memory_high_watermark", "0.000001")
    try:
        while relay.counts.is_broker_up:
            sent += await publish_many(relay, client, arrived.name, 1)
            await asyncio.to_thread(statuses, outbox_url)
        for round_ in range(1, 6):
            sent += await publish_many(relay, client, arrived.name, 1)
            await eventually(lambda wanted=round_: checks.count(False) >= wanted, seconds=30)
        assert not relay.counts.is_broker_up
    finally:
        await asyncio.to_thread(rabbitmq.control, "set_vm_memory_high_watermark", "0.4")
    await eventually(lambda: statuses(outbox_url) == {"published": len(sent)}, seconds=30)
    assert set(arrived.ids()) == set(sent)
    assert relay.counts.dead == 0
    said = [record.getMessage() for record in caplog.records if record.name == Availability.__module__]
    assert len(said) == 2
    assert "low on memory" in said[0]
    assert "is back" in said[1]


async def test_large_events_that_wait_in_the_table_are_claimed_no_faster_than_memory_allows(
    start_relay, client, queue, outbox_url, rabbitmq
):
    arrived = queue()
    await client.execute(
        "insert into headwater.outbox_message (topic, type, payload) "
        "select %s, 'Large', to_json(repeat('x', 1000000)) from generate_series(1, 60)",
        [arrived.name],
    )
    with Proxy(rabbitmq.url) as proxy:
        proxy.swallow = b"x" * 1000
        relay = await start_relay(RabbitmqAccess(url=proxy.url), claim_rows=10, retry_bytes=5_000_000, revive_every=SECOND)
        # Eight are under way, so that there is room for another claim, and then for none.
        await eventually(lambda: relay.counts.revived == 20)
        for _ in range(20):
            await asyncio.to_thread(statuses, outbox_url)
        assert (relay.counts.revived, relay.counts.in_flight, relay.fills["retry"]) == (20, 8, 12)
        proxy.swallow = None
        # Later connections work.
        proxy.freeze()
        proxy.cut()
        await eventually(lambda: statuses(outbox_url) == {"published": 60}, seconds=60)


async def test_credentials_that_are_changed_while_it_runs_are_waited_for(start_relay, client, queue, outbox_url, rabbitmq):
    arrived = queue()
    rabbitmq.control("add_user", "passing", "first")
    rabbitmq.control("set_permissions", "passing", ".*", ".*", ".*")
    url = rabbitmq.url.replace(f"headwater:{rabbitmq.password}", "passing:first")
    with Proxy(url) as proxy:
        relay = await start_relay(RabbitmqAccess(url=proxy.url), restarts=0)
        sent = await publish_many(relay, client, arrived.name, 1)
        await eventually(lambda: statuses(outbox_url) == {"published": 1})
        rabbitmq.control("change_password", "passing", "second")
        proxy.cut()
        sent += await publish_many(relay, client, arrived.name, 1)
        await eventually(lambda: not relay.counts.is_broker_up)
        rabbitmq.control("change_password", "passing", "first")
        await eventually(lambda: statuses(outbox_url) == {"published": 2})
    rabbitmq.control("delete_user", "passing")
    assert set(arrived.ids()) == set(sent)
    assert relay.is_running
