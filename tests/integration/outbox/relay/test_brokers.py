"""The relay with each of the four brokers, named by what a user would give: a url, or a connection string."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from urllib.parse import urlsplit

import pytest

from headwater.outbox import Event
from tests.conformance.broker_contract import BrokerTarget, all_targets
from tests.support.brokers.servicebus_server.server import connection_string
from tests.support.outbox.arrivals import eventually, rows, statuses

# The first test waits for the servers.
pytestmark = pytest.mark.timeout(90)

# Of these there are servers for all tests; the others are light.
SHARED = ("nats", "rabbitmq")


@pytest.fixture(params=all_targets().values(), ids=lambda kind: kind.name)
def target(request: pytest.FixtureRequest) -> Iterator[BrokerTarget]:
    kind = request.param
    is_shared = kind.name in SHARED
    with nullcontext(request.getfixturevalue(kind.name)) if is_shared else contextmanager(kind.serving)() as server:
        made = kind(server)
        with made.open():
            yield made


def address(target: BrokerTarget) -> str:
    url = urlsplit(target.door.url)
    match target.name:
        case "kafka":
            return f"kafka://{url.netloc}"
        case "servicebus":
            return connection_string(url.port or 0, target.secret)
        case _:
            return target.door.url


async def test_events_of_committed_transactions_arrive_under_their_ids_and_no_others(
    target, start_relay, client, outbox_url
):
    topic = target.destination()
    relay = await start_relay(address(target))
    own = uuid.uuid4()
    async with relay.transaction(client) as tx:
        first = await tx.publish(topic, "OrderCreated", {"id": 17}, key="17", headers={"from": "shop"}, id=own)
    with pytest.raises(ZeroDivisionError):
        async with relay.transaction(client) as tx:
            await tx.publish(topic, "Undone", {})
            raise ZeroDivisionError
    async with relay.transaction(client) as tx:
        others = await tx.publish_many([Event(topic, "Counted", number) for number in range(500)])
    await eventually(lambda: statuses(outbox_url) == {"published": 501}, seconds=60)
    arrived = {kept.id: kept for kept in target.stored(topic)}
    assert set(arrived) == {str(id_) for id_ in (first, *others)}
    one = arrived[str(own)]
    assert (one.type, one.payload, one.key, one.headers["from"]) == ("OrderCreated", b'{"id":17}', "17", "shop")
    assert {row["attempts"] for row in rows(outbox_url, "attempts")} == {1}
    assert relay.counts.revived == 0, "they went to the broker without a query of the table"


async def test_what_the_broker_refuses_is_dead_and_holds_up_nothing(target, start_relay, client, outbox_url):
    topic, nowhere = target.destination(), target.nowhere()
    relay = await start_relay(address(target), max_bytes=target.oversized_bytes + 2)
    async with relay.transaction(client) as tx:
        lost = await tx.publish(nowhere, "Unroutable", {})
        large = await tx.publish(topic, "Oversized", "x" * target.oversized_bytes)
        good = await tx.publish(topic, "Good", {})
    await eventually(lambda: statuses(outbox_url) == {"published": 1, "dead": 2}, seconds=60)
    dead = {row["id"]: row for row in rows(outbox_url, where="status = 'dead'")}
    assert set(dead) == {lost, large}
    assert all(row["error"] and row["locked_by"] is None for row in dead.values())
    assert [kept.id for kept in target.stored(topic)] == [str(good)]
