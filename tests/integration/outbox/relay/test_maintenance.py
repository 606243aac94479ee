"""The partitions are looked after beside the relay: what goes wrong with that harms no event."""

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from threading import Thread

import psycopg
import pytest

from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.outbox import OutboxRelay, RelaySettings, statements
from headwater.outbox.relay.maintenance import Maintenance
from headwater.postgres.statements import execute_sync
from tests.support.outbox.arrivals import eventually, statuses
from tests.support.servers.tcp_proxy import Proxy

pytestmark = pytest.mark.timeout(90)

OFTEN = timedelta(milliseconds=10)


@pytest.fixture
def granted_url(outbox_url, connection):
    """Of a role with what a relay is granted, and no more."""
    role = f"relayer_{connection.info.backend_pid}"
    connection.execute(f"create role {role} login password 'secret'")
    execute_sync(connection, statements.grant_relaying(role))
    yield psycopg.conninfo.make_conninfo(outbox_url, user=role, password="secret")
    connection.execute(f"drop owned by {role}")
    connection.execute(f"drop role {role}")


def count_rounds(monkeypatch):
    """The rounds of maintenance that have ended, with what they have raised."""
    rounds: list[Exception | None] = []
    maintain = Maintenance.maintain

    def counted(self):
        try:
            made = maintain(self)
        except Exception as exc:
            rounds.append(exc)
            raise
        rounds.append(None)
        return made

    monkeypatch.setattr(Maintenance, "maintain", counted)
    return rounds


async def test_a_role_with_what_is_granted_relays_and_says_once_what_it_may_not_do(
    start_relay, queue, outbox_url, granted_url, monkeypatch, caplog
):
    caplog.set_level(logging.INFO)
    rounds, arrived = count_rounds(monkeypatch), queue()
    relay = await start_relay(url=granted_url, restarts=0, maintain_every=OFTEN)
    await eventually(lambda: len(rounds) >= 3)
    assert {type(one) for one in rounds} == {psycopg.errors.InsufficientPrivilege}
    async with await psycopg.AsyncConnection.connect(granted_url, autocommit=True) as client:
        async with relay.transaction(client) as tx:
            await tx.publish(arrived.name, "Granted", {})
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    assert relay.is_running
    assert relay.counts.restarts == 0
    records = [record for record in caplog.records if record.name == Maintenance.__module__]
    assert {record.levelno for record in records} == {logging.INFO}, "it is as was meant"
    said = [record.getMessage() for record in records]
    assert len(said) == len(set(said))
    assert any("permission denied" in one and "`headwater outbox purge`" in one for one in said)


async def test_a_maintenance_that_always_fails_is_said_once_and_tried_again_and_the_relay_goes_on(
    start_relay, client, queue, outbox_url, monkeypatch, caplog
):
    tries = []

    def broken(self):
        tries.append(1)
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(Maintenance, "maintain", broken)
    arrived = queue()
    relay = await start_relay(restarts=0, maintain_every=OFTEN)
    await eventually(lambda: len(tries) >= 10)
    async with relay.transaction(client) as tx:
        await tx.publish(arrived.name, "Sent", {})
    await eventually(lambda: statuses(outbox_url) == {"published": 1})
    assert relay.is_running
    assert relay.counts.restarts == 0
    assert [message for message in caplog.messages if "no luck" in message] == [
        "the partitions of the outbox cannot be looked after: no luck"
    ]


class Swallowing(Proxy):
    """Gives no more answers to a connection once it has asked for partitions; tells how many have."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.swallowed = 0

    def _pump(self, source, target, frozen):
        with suppress(OSError):
            while data := source.recv(65536):
                if b"pg_inherits" in data:
                    self.swallowed += 1
                    frozen.set()
                if not frozen.is_set():
                    target.sendall(data)


def test_a_database_that_does_not_answer_its_maintenance_keeps_no_process_from_its_end(outbox_url, rabbitmq, caplog):
    caplog.set_level(logging.ERROR)

    async def relay_for_a_while(url: str) -> None:
        async with OutboxRelay(url, RabbitmqAccess(url=rabbitmq.url), RelaySettings(stop_within=timedelta(seconds=1))):
            await eventually(lambda: proxy.swallowed)

    with Swallowing(outbox_url) as proxy:
        # The end of an event loop waits for the threads that asyncio has started, as that of a process does.
        process = Thread(target=lambda: asyncio.run(relay_for_a_while(proxy.url)), daemon=True)
        process.start()
        process.join(30)
        assert proxy.swallowed
        assert not process.is_alive()
