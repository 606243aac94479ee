"""An outbox whose broker is away, refuses messages, or does not know where they go.

Nothing is lost, and those who write notice nothing of it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.broker import NatsBrokerSettings
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import stream_info
from headwater.brokers.registry import NatsMessages
from headwater.embedded import EmbeddedNats
from headwater.spark.settings import MIB, OutboxLanes
from tests.support.brokers.nats_streams import fresh_namespace, stored
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.servers.tcp_proxy import Proxy
from tests.support.stories.outbox_story import (
    NAME,
    Message,
    Producer,
    Queue,
    Relay,
    is_streaming,
    lose_slot,
    publish_messages,
    queue_access,
    read_message,
    relay_settings,
    tally,
)
from tests.support.stories.pipeline_process import fetch
from tests.support.waiting import eventually

# A second of writing.
SOME = 200
# The least that is allowed, and more messages than that can hold.
BATCH, BATCH_MESSAGES = MIB // 16, 450

pytestmark = pytest.mark.timeout(600)

Note = Callable[[str, object], None]


def test_a_broker_that_is_away_holds_up_the_relay_and_nobody_else(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    with Proxy(rabbitmq.url) as proxy:
        access = queue_access(proxy.url, queue, timeout=timedelta(seconds=2))
        settings = relay_settings(tmp_path, source, access, max_bytes=BATCH)
        with Relay(spark, settings) as relay:
            eventually(lambda: is_streaming(source), seconds=240)
            with Producer(source, NAME, paced_by=queue) as producer:
                queue.wait_for_more(SOME)
                with producer.unpaced():
                    proxy.refuse = True
                    proxy.cut()
                    eventually(relay.is_retrying, seconds=60)
                    before = len(producer.committed)
                    producer.wait_for_more(SOME)
                    meanwhile = len(producer.committed) - before
                proxy.refuse = False
                queue.wait_for_more(SOME)
            queue.wait_for(producer.committed, relay.require_life, seconds=600)
    found = tally(producer.committed, queue.arrived)
    said = f"outbox, broker away, {meanwhile} messages committed meanwhile"
    record_property("counts", f"{said}: {found}")
    found.require_all()
    assert meanwhile >= SOME
    assert found.repeated <= BATCH_MESSAGES


def test_messages_that_a_full_queue_refuses_come_when_there_is_room(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, tmp_path: Path, record_property: Note
) -> None:
    room = 50
    with Queue(rabbitmq, x_max_length=room, x_overflow="reject-publish") as queue:
        settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue), max_bytes=BATCH)
        with Relay(spark, settings) as relay:
            eventually(lambda: is_streaming(source), seconds=240)
            with Producer(source, NAME) as producer:
                producer.wait_for_more(SOME)
            eventually(lambda: queue.waiting >= room, seconds=60)
            # Now the broker says no to everything that comes.
            queue.open()
            began = time.monotonic()
            queue.wait_for(producer.committed, relay.require_life, seconds=120)
            seconds = time.monotonic() - began
    found = tally(producer.committed, queue.arrived)
    record_property("counts", f"outbox, queue with room for {room} that refuses the rest, {seconds:.0f} s: {found}")
    assert (found.lost, found.ghosts, found.unsettled) == (0, 0, 0)


def _write_astray(connection: psycopg.Connection[Any], topic: str, messages: Sequence[Message]) -> None:
    """One in a hundred goes to where no queue is."""
    for each in messages:
        publish_messages(connection, "nowhere" if each.number % 100 == 7 else topic, [each])


@pytest.mark.parametrize("lane_by", OutboxLanes)
def test_messages_that_no_queue_takes_are_dead_letters_and_the_others_arrive(
    lane_by: OutboxLanes,
    spark: SparkSession,
    source: str,
    rabbitmq: RabbitmqNode,
    queue: Queue,
    tmp_path: Path,
    record_property: Note,
) -> None:
    access = queue_access(rabbitmq.url, queue, routing_key="{topic}")
    with Relay(spark, relay_settings(tmp_path, source, access, lane_by=lane_by)) as relay:
        eventually(lambda: is_streaming(source), seconds=240)
        with Producer(source, queue.name, write=_write_astray) as producer:
            producer.wait_for_more(2 * SOME)
        astray = {each.id for each in producer.committed if each.number % 100 == 7}
        others = [each for each in producer.committed if each.id not in astray]
        queue.wait_for(others, relay.require_life)
        eventually(lambda: len(_letters(source)) >= len(astray))
    found = tally(others, queue.arrived)
    record_property("counts", f"outbox, {len(astray)} messages that no queue takes, lanes by {lane_by.value}: {found}")
    found.require_all()
    assert found.repeated == 0
    assert astray
    letters = _letters(source)
    assert {id for id, _ in letters} == astray
    assert len(letters) == len(astray)
    assert all("nowhere" in str(reason) for _, reason in letters)


def _letters(source: str) -> list[tuple[object, ...]]:
    return fetch(source, "select event_id, reason from headwater.dead_letter")


def test_nats_has_each_message_once_when_the_slot_is_lost_and_nats_is_away(
    spark: SparkSession, source: str, nats: EmbeddedNats, tmp_path: Path, record_property: Note
) -> None:
    """It knows the ids of messages, so those that are sent again are left out."""
    stream = fresh_namespace()
    with Proxy(nats.url) as proxy:
        through = NatsAccess(url=proxy.url, timeout=timedelta(seconds=2))
        broker = NatsBrokerSettings(subject=f"{stream}.{{topic}}", stream=stream, stream_subjects=(f"{stream}.>",))
        settings = relay_settings(tmp_path, source, NatsMessages(access=through, settings=broker), lane_by=OutboxLanes.KEY)
        with Relay(spark, settings) as relay:
            eventually(lambda: is_streaming(source), seconds=240)
            with Producer(source, NAME) as producer:
                producer.wait_for_more(SOME)
                lose_slot(source)
                producer.wait_for_more(SOME)
                proxy.refuse = True
                proxy.cut()
                eventually(relay.is_retrying, seconds=60)
                proxy.refuse = False
                producer.wait_for_more(SOME)
            eventually(lambda: _count(nats, stream) >= len(producer.committed), seconds=120)
            relay.require_life()
    arrived = [read_message(each.headers["Nats-Msg-Id"], each.body) for each in stored(NatsAccess(url=nats.url), stream)]
    found = tally(producer.committed, arrived)
    record_property("counts", f"outbox to NATS, slot lost and NATS away for a while: {found}")
    found.require_all()
    assert found.repeated == 0


def _count(nats: EmbeddedNats, stream: str) -> int:
    with closing(Link(NatsAccess(url=nats.url))) as link:
        found = stream_info(link, stream)
    return 0 if found is None else found.messages
