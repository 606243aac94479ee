"""Relays inside of applications whose broker is away, refuses, does not know where messages go, or never confirms.

Nothing is lost, those who write notice nothing, and what may come twice is counted.
"""

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial

import psycopg
import pytest

from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.outbox.statements import list_dead, revive_dead
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync, fetch_sync
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.servers.tcp_proxy import Proxy
from tests.support.stories.outbox_story import Message, Queue, queue_access, tally
from tests.support.stories.relay_processes import (
    RelayProducer,
    RelayThread,
    events_of,
    require_none_lost,
    statuses,
    wait_until_settled,
)
from tests.support.waiting import eventually

SOME = 500

pytestmark = pytest.mark.timeout(300)

Note = Callable[[str, object], None]


@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
def test_a_broker_that_is_away_in_the_middle_costs_no_event_and_holds_up_no_transaction(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, record_property: Note, ordered: bool
) -> None:
    with Proxy(rabbitmq.url) as proxy:
        with RelayThread(source, queue_access(proxy.url, queue), order_by_key=ordered) as running:
            with RelayProducer(running.relay, source, "sales") as producer:
                queue.wait_for_more(SOME)
                proxy.refuse = True
                proxy.cut()
                eventually(lambda: not running.relay.counts.is_broker_up, seconds=60)
                before = len(producer.committed)
                producer.wait_for_more(SOME)
                meanwhile = len(producer.committed) - before
                assert not running.relay.counts.is_broker_up
                proxy.refuse = False
                queue.wait_for_more(SOME)
            queue.wait_for(producer.committed, running.require_life, seconds=300)
            found = wait_until_settled(source)
    counted = tally(producer.committed, queue.arrived)
    order = ", in the order of keys" if ordered else ""
    said = f"relay, broker away while {meanwhile} messages were committed{order}"
    record_property("counts", f"{said}: {counted}")
    require_none_lost(counted)
    assert (counted.disordered == 0) or not ordered
    # However long it was away, that alone makes no event a dead one.
    assert found == {"published": counted.committed}


def test_events_that_a_full_queue_refuses_come_when_there_is_room(
    source: str, rabbitmq: RabbitmqNode, record_property: Note
) -> None:
    with Queue(rabbitmq, x_max_length=100, x_overflow="reject-publish") as queue:
        with RelayThread(source, queue_access(rabbitmq.url, queue)) as running:
            with RelayProducer(running.relay, source, "sales") as producer:
                producer.wait_for_more(SOME)
                eventually(lambda: running.relay.counts.nacks > 100)
                queue.open()
            queue.wait_for(producer.committed, running.require_life, seconds=240)
            found = wait_until_settled(source)
            nacks = running.relay.counts.nacks
        counted = tally(producer.committed, queue.arrived)
    record_property("counts", f"relay, {nacks} nacks of a full queue: {counted}")
    require_none_lost(counted)
    # A nack is an answer: what was refused was not stored, and what was stored is not sent again.
    assert counted.repeated == 0
    assert found == {"published": counted.committed}


def test_one_in_a_hundred_that_nothing_is_bound_for_is_dead_and_comes_once_it_is(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, record_property: Note
) -> None:
    elsewhere = f"{queue.name}-elsewhere"
    access = RabbitmqAccess(url=rabbitmq.url)
    with RelayThread(source, access) as running, closing(psycopg.connect(source, autocommit=True)) as connection:
        messages = [Message("", f"k{number % 7}", number) for number in range(2 * SOME)]
        committed = []
        for message in messages:
            topic = elsewhere if message.number % 100 == 99 else queue.name
            with running.relay.transaction_sync(connection) as tx:
                id_ = tx.publish(topic, "Counted", message.payload, key=message.key)
            committed.append(Message(str(id_), message.key, message.number))
        lost_ones = [each for each in committed if each.number % 100 == 99]
        queue.wait_for([each for each in committed if each not in lost_ones], running.require_life)
        found = wait_until_settled(source)
        assert found == {"published": len(committed) - len(lost_ones), "dead": len(lost_ones)}
        with closing(connect_sync(source)) as own:
            dead = fetch_sync(own, list_dead(1000))
            assert sorted(str(each.id) for each in dead) == sorted(each.id for each in lost_ones)
            assert all("unroutable" in (each.error or "") for each in dead), dead[0]
            with rabbitmq.channel() as channel:
                channel.queue_declare(elsewhere, durable=True)
            execute_sync(own, revive_dead())
        wait_until_settled(source)
    with rabbitmq.channel() as channel:
        late = int(channel.queue_delete(elsewhere).method.message_count)
    counted = tally([each for each in committed if each not in lost_ones], queue.arrived)
    record_property("counts", f"relay, 1 % unroutable, {late} of {len(lost_ones)} after they were revived: {counted}")
    require_none_lost(counted)
    assert (late, counted.repeated) == (len(lost_ones), 0)
    assert statuses(source) == {"published": len(committed)}


def test_a_connection_that_is_cut_between_publish_and_confirm_loses_nothing(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, record_property: Note
) -> None:
    with Proxy(rabbitmq.url) as proxy:
        with RelayThread(source, queue_access(proxy.url, queue)) as running:
            with RelayProducer(running.relay, source, "sales", is_fast=True) as producer:
                for _ in range(5):
                    queue.wait_for_more(SOME // 5)
                    # What arrives now is confirmed to nobody: the answers are swallowed, and then the connection ends.
                    proxy.mute, before = True, len(queue.arrived)
                    eventually(partial(is_at_work, running, queue, before), seconds=60)
                    proxy.cut()
                    proxy.mute = False
                queue.wait_for_more(SOME // 5)
            queue.wait_for(producer.committed, running.require_life, seconds=240)
            found = wait_until_settled(source)
    counted = tally(producer.committed, queue.arrived)
    record_property("counts", f"relay, cut between publish and confirm five times: {counted}")
    require_none_lost(counted)
    # At most what a window holds comes again, each time.
    assert 0 < counted.repeated <= 5 * running.relay.settings.window
    assert found == {"published": counted.committed}


def is_at_work(running: RelayThread, queue: Queue, before: int) -> bool:
    """Whether something has arrived since; or nothing can, since there is no connection that could be cut."""
    return len(queue.arrived) > before or not running.relay.counts.is_broker_up


def test_a_broker_that_takes_messages_and_never_confirms_blocks_nobody_and_loses_nothing(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, record_property: Note
) -> None:
    with Proxy(rabbitmq.url) as proxy:
        access = queue_access(proxy.url, queue, timeout=timedelta(seconds=1))
        with RelayThread(source, access) as running:
            with RelayProducer(running.relay, source, "sales") as producer:
                queue.wait_for_more(SOME // 5)
                proxy.mute = True
                eventually(lambda: running.relay.counts.nacks > 0 or not running.relay.counts.is_broker_up, seconds=30)
                producer.wait_for_more(SOME // 5)
                # A stream with a hole in it is of no use to either side.
                proxy.mute = False
                proxy.cut()
                queue.wait_for_more(SOME // 5)
            queue.wait_for(producer.committed, running.require_life, seconds=240)
            found = wait_until_settled(source)
    counted = tally(producer.committed, queue.arrived)
    record_property("counts", f"relay, a broker that never confirms for a while: {counted}")
    require_none_lost(counted)
    assert found == {"published": counted.committed}


def test_an_unroutable_event_of_a_transaction_does_not_hold_up_the_others_of_it(
    source: str, rabbitmq: RabbitmqNode, queue: Queue
) -> None:
    with RelayThread(source, RabbitmqAccess(url=rabbitmq.url)) as running:
        with closing(psycopg.connect(source, autocommit=True)) as connection:
            with running.relay.transaction_sync(connection) as tx:
                tx.publish_many(events_of("nowhere-at-all", [Message("01932d3e-7d2b-7c3a-9d55-3c1f0e2b9a11", "k", 1)]))
                tx.publish_many(events_of(queue.name, [Message("01932d3e-7d2b-7c3a-9d55-3c1f0e2b9a12", "k", 2)]))
        queue.wait_for_more(1)
        assert wait_until_settled(source) == {"published": 1, "dead": 1}
