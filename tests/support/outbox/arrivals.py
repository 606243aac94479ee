"""What arrived at a broker, and what the outbox says of it."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from tests.support.brokers.rabbitmq_node import RabbitmqNode


class RabbitmqQueue:
    """A queue of one test. What was taken out of it is remembered."""

    def __init__(self, node: RabbitmqNode, name: str) -> None:
        self._node, self.name = node, name
        self._ids: list[str] = []
        self.bodies: list[bytes] = []

    def declare(self, arguments: Mapping[str, object]) -> None:
        with self._node.channel() as channel:
            channel.queue_declare(self.name, durable=True, arguments=dict(arguments))

    def ids(self) -> list[str]:
        """The ids of all messages that have come so far, in their order."""
        with self._node.channel() as channel:
            while (got := channel.basic_get(self.name, auto_ack=True))[0] is not None:
                self._ids.append(got[1].message_id)
                self.bodies.append(got[2])
        return self._ids


def rows(url: str, columns: str = "*", where: str = "true") -> list[dict[str, Any]]:
    """Rows of the outbox in the order of writing."""
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        query = f"select {columns} from headwater.outbox_message where {where} order by created_at, id"  # noqa: S608
        return connection.execute(query.encode()).fetchall()


def statuses(url: str) -> dict[str, int]:
    """How many rows are in which state."""
    with psycopg.connect(url) as connection:
        query = "select status, count(*) from headwater.outbox_message group by status"
        return dict(connection.execute(query).fetchall())


def partitions(url: str) -> list[str]:
    """The names of the partitions, the default one among them."""
    with psycopg.connect(url) as connection:
        query = "select inhrelid::regclass::text from pg_inherits where inhparent = 'headwater.outbox_message'::regclass"
        return sorted(name for (name,) in connection.execute(query))


async def eventually(probe: Callable[..., object], *, seconds: float = 15) -> Any:
    """As `waiting.eventually`, while the event loop runs; the probe has a thread of its own, so that it may block."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (answer := await asyncio.to_thread(probe)):
        assert asyncio.get_running_loop().time() < deadline, f"still {answer!r} after {seconds} seconds"
        await asyncio.sleep(0.02)
    return answer
