"""Brokers as sinks of pipelines: changes of tables, messages behind a transform, what is refused, and what is sent again."""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

from headwater import outbox
from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.errors import SinkError
from headwater.outbox.checkpoint import prepare_outbox
from headwater.postgres.connect import Connection, connect_sync
from headwater.spark.letters import find_letter, list_letters
from headwater.spark.pipeline import Pipeline
from headwater.spark.settings import (
    BrokerSinkSettings,
    ChangesSettings,
    OutboxLanes,
    OutboxSettings,
    PipelineSettings,
    TransformSettings,
)
from headwater.spark.sinks.build import build_sinks
from headwater.spark.sinks.replay import replay
from tests.support.brokers.rabbitmq_node import RabbitmqNode

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def source(database: str) -> Iterator[Connection]:
    with closing(connect_sync(database)) as connection:
        yield connection


class Place:
    """A RabbitMQ with queues of names that no other test has."""

    def __init__(self, node: RabbitmqNode) -> None:
        self.node, self.name = node, f"T{uuid.uuid4().hex[:12]}"

    @property
    def access(self) -> RabbitmqAccess:
        return RabbitmqAccess(url=self.node.url, routing_key=f"{self.name}.{{topic}}", timeout=timedelta(seconds=20))

    def declare(self, *topics: str) -> None:
        with self.node.channel() as channel:
            for topic in topics:
                channel.queue_declare(f"{self.name}.{topic}", durable=True)

    def take(self, topic: str) -> list[tuple[object, bytes]]:
        found = []
        with self.node.channel() as channel:
            while (got := channel.basic_get(f"{self.name}.{topic}", auto_ack=True))[0] is not None:
                found.append((got[1], got[2]))
        return found


@pytest.fixture
def place(rabbitmq) -> Place:
    return Place(rabbitmq)


def _settings(directory: Path, url: str, place: Place, source, **more) -> PipelineSettings:
    sinks = (BrokerSinkSettings(name="broker", access=place.access),)
    return PipelineSettings(name="p", source=source, sinks=sinks, checkpoint=f"{directory}/cp", state_url=url, **more)


def _once(spark, settings) -> None:
    Pipeline(spark, settings, build_sinks(settings), Event()).run(once=True)


def test_changes_and_whole_tables_arrive_as_json_with_their_keys(spark, source, database, place, tmp_path):
    source.execute("create table item (id int primary key, name text, large text)")
    source.execute("alter table item alter large set storage external")
    source.execute("insert into item values (1, 'there', repeat('x', 9000))")
    place.declare("public.item")
    changes = ChangesSettings(url=database, tables=("item",), slot="hw", publication="hw")
    settings = _settings(tmp_path, database, place, changes)
    _once(spark, settings)
    source.execute("insert into item values (2, 'new', 'y')")
    source.execute("update item set name = 'other' where id = 1")
    source.execute("delete from item where id = 2")
    _once(spark, settings)
    found = place.take("public.item")
    events = [json.loads(body) for _, body in found]
    assert [properties.type for properties, _ in found] == ["r", "c", "u", "d"]
    assert [event["key"] for event in events] == [{"id": 1}, {"id": 2}, {"id": 1}, {"id": 2}]
    assert events[2]["after"] == {"id": 1, "name": "other"}
    assert found[2][0].headers["Headwater-Unchanged"] == "large"
    # The very text decides about the partition of a Kafka, or the session of a Service Bus.
    assert [properties.headers["cloudEvents:partitionkey"] for properties, _ in found] == ['{"id":1}', '{"id":2}'] * 2
    assert len({properties.message_id for properties, _ in found}) == 4


def test_a_transform_sees_messages_and_their_order_holds(spark, source, database, place, tmp_path):
    prepare_outbox(database)
    place.declare("orders")
    transform = TransformSettings(
        filter="topic = 'orders'", sql="select * from messages where get_json_object(cast(payload as string), '$.n') % 2 = 0"
    )
    outbox_source = OutboxSettings(url=database, slot="hw", publication="hw", lane_by=OutboxLanes.KEY)
    settings = _settings(tmp_path, database, place, outbox_source, transform=transform)
    with source.transaction():
        for n in range(40):
            outbox.publish_sync(source, "orders" if n < 30 else "secrets", "T", {"n": n}, key=f"k{n % 3}")
    _once(spark, settings)
    for n in range(40, 60):
        with source.transaction():
            outbox.publish_sync(source, "orders", "T", {"n": n}, key=f"k{n % 3}")
    _once(spark, settings)
    numbers = [json.loads(body)["n"] for _, body in place.take("orders")]
    assert sorted(numbers) == [*range(0, 30, 2), *range(40, 60, 2)]
    for key in range(3):
        mine = [number for number in numbers if number % 3 == key]
        assert mine == sorted(mine)


def test_what_has_nowhere_to_go_is_a_letter_and_arrives_when_it_has(spark, source, database, place, tmp_path):
    prepare_outbox(database)
    place.declare("orders")
    settings = _settings(tmp_path, database, place, OutboxSettings(url=database, slot="hw", publication="hw"))
    with source.transaction():
        outbox.publish_sync(source, "orders", "T", {"n": 1})
        lost = outbox.publish_sync(source, "nowhere", "T", {"n": 2}, key="k", headers={"h": "é"})
        outbox.publish_sync(source, "orders", "T", {"n": 3})
    _once(spark, settings)
    assert [json.loads(body)["n"] for _, body in place.take("orders")] == [1, 3]
    (summary,) = list_letters(source, pipeline="p")
    assert (summary.event_id, summary.sink, summary.table) == (str(lost), "broker", "outbox_message")
    assert "unroutable" in summary.reason
    letter = find_letter(source, summary.id)
    assert letter is not None
    (sink,) = build_sinks(settings)
    with pytest.raises(SinkError, match="still cannot be published"):
        replay(sink, letter.letter)
    place.declare("nowhere")
    replay(sink, letter.letter)
    ((properties, body),) = place.take("nowhere")
    assert (properties.message_id, json.loads(body), properties.headers["h"]) == (str(lost), {"n": 2}, "é")
