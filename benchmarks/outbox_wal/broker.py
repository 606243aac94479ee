"""The relay against what the broker takes from our own publisher alone: the same payloads as ready messages, in one call.

Events are written in transactions of ten, before a clock begins. NATS says when it stored the first message and the last;
a queue of RabbitMQ is looked at every few milliseconds. Both arms are measured that way, in turns.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import count
from threading import Event, Thread
from typing import Protocol

import pika
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from benchmarks.outbox_wal.relay import Relay, relaying
from benchmarks.outbox_wal.statements import read_messages
from benchmarks.outbox_wal.testbed import TOPIC, Stored, Testbed, start_testbed
from benchmarks.report import Bar, Output
from benchmarks.spark_session import spark_session
from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.registry import BrokerAccess, open_broker
from headwater.model import MESSAGE, Messages
from headwater.postgres.statements import fetch_sync
from tests.support.brokers.rabbitmq_node import RabbitmqNode

PER_TRANSACTION = 10
_LOOK_SECONDS = 0.01
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sizes:
    events: int = 150_000
    warm_up: int = 30_000
    rounds: int = 3


QUICK = Sizes(events=50_000, warm_up=20_000, rounds=1)


class Place(Protocol):
    """Where the messages of one turn go."""

    @property
    def messages(self) -> BrokerAccess: ...

    def require(self, wanted: int) -> Stored: ...


Places = Callable[[], AbstractContextManager[Place]]


@dataclass(frozen=True, slots=True)
class Turn:
    relay: Stored
    read_at: float
    alone: Stored

    @property
    def ratio(self) -> float:
        return self.relay.per_second / self.alone.per_second

    @property
    def ratio_with_read(self) -> float:
        """With what the relay takes before its first batch is there."""
        return self.relay.messages / (self.relay.last - self.read_at) / self.alone.per_second


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output) as testbed, output.console.status("starting Spark") as status, spark_session() as spark:
        status.stop()
        nats = ratio(testbed, spark, "nats", testbed.target, sizes)
        rabbitmq = math.nan
        try:
            with RabbitmqNode() as node:
                rabbitmq = ratio(testbed, spark, "rabbitmq", queues(node), sizes)
        except pytest.skip.Exception as exc:
            output.figures["broker_rabbitmq"] = f"not measured: {exc}"
    return [
        Bar("relay_over_broker_nats", round(nats, 3), at_least=0.5),
        Bar("relay_over_broker_rabbitmq", round(rabbitmq, 3), at_least=0.7),
    ]


def ratio(testbed: Testbed, spark: SparkSession, name: str, place: Places, sizes: Sizes) -> float:
    testbed.empty()
    with place() as first, relaying(testbed, spark, first.messages, name) as relay:
        turn_of(testbed, relay, place, sizes.warm_up)
        turns = [turn_of(testbed, relay, place, sizes.events) for _ in range(sizes.rounds)]
    figures = testbed.output.figures
    figures[f"broker_{name}_events"] = sizes.events
    figures[f"broker_{name}_relay_per_s"] = round(statistics.median(turn.relay.per_second for turn in turns))
    figures[f"broker_{name}_alone_per_s"] = round(statistics.median(turn.alone.per_second for turn in turns))
    figures[f"relay_over_broker_with_read_{name}"] = round(statistics.median(turn.ratio_with_read for turn in turns), 3)
    return statistics.median(turn.ratio for turn in turns)


def turn_of(testbed: Testbed, relay: Relay, place: Places, events: int) -> Turn:
    testbed.empty()
    testbed.write(events, PER_TRANSACTION)
    with place() as target, testbed.output.console.status(f"{events:,} events through the relay"):
        delivered = relay.deliver(target.messages)
        relayed = target.require(events)
    ready = ready_messages(testbed, events)
    with place() as target, testbed.output.console.status(f"{events:,} ready messages"):
        with closing(open_broker(target.messages)) as broker:
            published = broker.publish(ready)
        assert published.stored == events, f"{published.stored} of {events} messages were stored"
        alone = target.require(events)
    return Turn(relayed, delivered.read_at, alone)


def ready_messages(testbed: Testbed, events: int) -> Messages:
    """What is in the outbox, as messages that only have to be sent."""
    rows = fetch_sync(testbed.connection, read_messages(events))
    columns = {name: [getattr(row, name) for row in rows] for name in ("id", "topic", "type", "key", "created_at")}
    columns["payload"] = [row.payload.encode() for row in rows]
    columns["content_type"] = ["application/json"] * len(rows)
    columns["headers"] = [None] * len(rows)
    return Messages(pa.RecordBatch.from_pydict(columns, MESSAGE))


def queues(node: RabbitmqNode) -> Places:
    """New quorum queues of a node, one after the other."""
    numbers = count(1)

    @contextmanager
    def place() -> Iterator[Queue]:
        with Queue(node.url, f"turn{next(numbers):04}") as queue:
            yield queue

    return place


class Queue:
    """A queue that is looked at while it is filled, by a thread of its own, and is gone at the end."""

    def __init__(self, url: str, prefix: str) -> None:
        self._prefix, self._name = prefix, f"{prefix}.{TOPIC}"
        self._url, self._leaving = url, Event()
        self._sightings: list[tuple[float, int]] = []
        self._thread = Thread(target=self._watch, name=f"watch {prefix}", daemon=True)

    def __enter__(self) -> "Queue":
        with closing(pika.BlockingConnection(pika.URLParameters(self._url))) as connection:
            connection.channel().queue_declare(self._name, durable=True, arguments={"x-queue-type": "quorum"})
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leaving.set()
        self._thread.join()
        with closing(pika.BlockingConnection(pika.URLParameters(self._url))) as connection:
            connection.channel().queue_delete(self._name)

    @property
    def messages(self) -> RabbitmqAccess:
        return RabbitmqAccess(url=self._url, routing_key=f"{self._prefix}.{{topic}}")

    def require(self, wanted: int) -> Stored:
        """Raises unless the queue comes to have so many messages."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline and (not self._sightings or self._sightings[-1][1] < wanted):
            time.sleep(_LOOK_SECONDS)
        return stored_by(self._sightings, wanted)

    def _watch(self) -> None:
        with closing(pika.BlockingConnection(pika.URLParameters(self._url))) as connection:
            channel = connection.channel()
            while not self._leaving.wait(_LOOK_SECONDS):
                found = channel.queue_declare(self._name, passive=True).method.message_count
                self._sightings.append((time.time(), found))


def stored_by(sightings: list[tuple[float, int]], wanted: int) -> Stored:
    """When the first message was seen, and when all of them were."""
    seen = [at for at, messages in sightings if messages > 0]
    found = max((messages for _, messages in sightings), default=0)
    assert found == wanted, f"the queue has {found} of {wanted} messages"
    return Stored(wanted, seen[0], next(at for at, messages in sightings if messages == wanted))
