"""What the parts share: PostgreSQL and RabbitMQ as they are in production, with durable writes, and places for messages.

Both arms publish persistent messages to the same durable exchange, behind which stands one durable quorum queue.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import pika
from pika.adapters.blocking_connection import BlockingChannel

from benchmarks.outbox_relay import statements
from benchmarks.report import Output
from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.outbox.checkpoint import prepare_outbox
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.statements import execute_sync
from tests.support.brokers.rabbitmq_node import RabbitmqNode

TOPIC: Final = "entities"
# The class of the event, which is the routing key of the original.
TYPE: Final = "EntityCreated"
# Of an event that a full queue refuses.
FULL_TYPE: Final = "EntityRefused"
# So that an event has about 100 bytes.
NAME: Final = "an entity of the benchmark, with a name that is as long as it takes " + "." * 8
# Commits are as durable as they are by default. Checkpoints and vacuums are kept out of the way, so that they do not fall
# into one arm and not the other.
SERVER: Final[Mapping[str, str]] = {
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "512MB",
    "autovacuum": "off",
}


def payload_of(number: int) -> dict[str, object]:
    return {"id": number, "name": NAME}


def text_of(number: int) -> str:
    return json.dumps(payload_of(number))


@dataclass(frozen=True, slots=True)
class Place:
    """An exchange of one turn's own, and the queues behind it by their routing keys."""

    url: str
    exchange: str
    queues: tuple[str, ...]

    @property
    def messages(self) -> RabbitmqAccess:
        return RabbitmqAccess(url=self.url, exchange=self.exchange, routing_key="{type}")

    def ids(self) -> list[str]:
        """The ids of all messages that the queues have, which are taken out."""
        found: list[str] = []
        with channel_of(self.url) as channel:
            for queue in self.queues:
                while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                    found.append(str(got[1].message_id))
        return found

    def count(self) -> int:
        with channel_of(self.url) as channel:
            return sum(int(channel.queue_declare(queue, passive=True).method.message_count) for queue in self.queues)

    def require(self, wanted: int) -> None:
        """Raises unless there are so many messages."""
        found = self.count()
        assert found == wanted, f"the queue has {found} of {wanted} messages"


@dataclass(frozen=True, slots=True)
class Testbed:
    """A database with both outboxes, and a broker."""

    url: str
    connection: Connection
    broker_url: str
    output: Output
    turns: "count[int]" = field(default_factory=lambda: count(1))

    @contextmanager
    def place(self, *, has_full_queue: bool = False) -> Iterator[Place]:
        """Empty tables, and an exchange with a queue, which are gone at the end; and a queue that refuses all, if wanted."""
        execute_sync(self.connection, statements.empty_tables())
        name = f"turn{next(self.turns):04}"
        place = Place(self.broker_url, name, (name, f"{name}.full") if has_full_queue else (name,))
        with channel_of(self.broker_url) as channel:
            channel.exchange_declare(name, "direct", durable=True)
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind(name, name, TYPE)
            if has_full_queue:
                _declare_full(channel, name, f"{name}.full")
        yield place
        with channel_of(self.broker_url) as channel:
            channel.exchange_delete(name)
            for queue in place.queues:
                channel.queue_delete(queue)


@contextmanager
def start_testbed(output: Output) -> Iterator[Testbed]:
    """The servers, with the tables made."""
    with (
        output.console.status("starting PostgreSQL and RabbitMQ"),
        EmbeddedPostgres(PostgresSettings(config=SERVER)) as server,
        RabbitmqNode() as node,
        closing(connect_sync(server.url)) as connection,
    ):
        prepare_outbox(server.url)
        execute_sync(connection, statements.create_tables())
        yield Testbed(server.url, connection, node.url, output)


@contextmanager
def channel_of(url: str) -> Iterator[BlockingChannel]:
    with closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        yield connection.channel()


def _declare_full(channel: BlockingChannel, exchange: str, queue: str) -> None:
    """A queue without room, which answers each message with a nack."""
    channel.queue_declare(queue, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    channel.queue_bind(queue, exchange, FULL_TYPE)
    channel.confirm_delivery()
    channel.basic_publish(exchange, FULL_TYPE, b"{}", pika.BasicProperties(message_id="first"))
