"""A task that publishes to a broker, called as Spark's workers call it: parts of a partition, one after the other."""

import json
import pickle
import uuid
from datetime import timedelta

import pyarrow as pa
import pytest

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.broker import NatsBrokerSettings
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import call
from headwater.brokers.registry import NatsMessages
from headwater.creek.names import Names
from headwater.embedded.process import free_port
from headwater.outbox.columns import OutboxColumns
from headwater.spark.shape import Shape
from headwater.spark.sinks.brokers.parts import Parts
from headwater.spark.sinks.brokers.task import PublishTask
from headwater.spark.sinks.nats.parts import Whose
from headwater.spark.sources.outbox.messages import of_rows

OWN = OutboxColumns.headwater()


def _part(prefix, numbers, topic="kept"):
    rows = [(f"{prefix}-{n}", topic, "T", "k", json.dumps({"n": n}), "{}", "2026-11-16 10:00:00+00") for n in numbers]
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return of_rows(pa.RecordBatch.from_arrays(columns, list(OWN.names)), OWN, "json")


def _run(access, parts):
    whose = Whose("p", "broker", Names("headwater", "d"))
    task = PublishTask(Parts(whose, Shape.MESSAGE, ("headwater", "outbox_message")), access)
    (said,) = task(iter(parts))
    return pickle.loads(said["outcome"][0].as_py())


@pytest.fixture
def prefix(nats):
    """A subject of the test's own, with a stream for `<prefix>.kept`."""
    name = f"T{uuid.uuid4().hex[:12]}"
    link = Link(NatsAccess(url=nats.url))
    call(link, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.kept"], "storage": "memory"})
    link.close()
    return name


def _stored(nats, prefix):
    link = Link(NatsAccess(url=nats.url))
    try:
        return call(link, f"STREAM.INFO.{prefix}", {})["state"]["messages"]
    finally:
        link.close()


def test_the_letters_of_refused_messages_are_those_of_their_own_part(nats, prefix):
    access = NatsMessages(
        access=NatsAccess(url=nats.url, timeout=timedelta(seconds=10)),
        settings=NatsBrokerSettings(subject=f"{prefix}.{{topic}}"),
    )
    parts = [(range(5), "kept"), (range(5, 7), "nowhere"), (range(7, 9), "kept"), ([9], "nowhere")]
    outcome = _run(access, [_part(prefix, numbers, topic) for numbers, topic in parts])
    assert outcome.failure is None
    assert [letter.event_id for letter in outcome.letters] == [f"{prefix}-{n}" for n in (5, 6, 9)]
    assert (outcome.written.changes, outcome.written.letters, _stored(nats, prefix)) == (7, 3, 7)


def test_what_keeps_a_part_from_being_published_ends_the_task_and_is_told_with_the_letters_so_far():
    nobody = NatsAccess(url=f"nats://127.0.0.1:{free_port()}", timeout=timedelta(milliseconds=300))
    outcome = _run(NatsMessages(access=nobody), [_part("x", [1], ""), _part("x", range(2, 4)), _part("x", range(4, 6))])
    assert outcome.failure is not None
    assert outcome.failure[1], "a server that is away may come back"
    assert [letter.event_id for letter in outcome.letters] == ["x-1"]
    assert outcome.written.changes == 0
