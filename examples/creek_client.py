"""Follow a table's changes on NATS JetStream with the Creek client, stop in the middle of a transaction, and go on there.

It brings its own NATS server, and in place of a producer a few lines that publish one transaction. Against producers of your
own, only `creek.connect` and what follows it are needed.
"""

import asyncio
import io
import json
from datetime import UTC, datetime
from decimal import Decimal

import fastavro
import nats
from nats.js.api import StreamConfig

from headwater import creek
from headwater.creek.framing import packets
from headwater.creek.messages import SchemaMessage
from headwater.creek.names import Kind, Names
from headwater.creek.schema import wal_schema
from headwater.embedded import EmbeddedNats
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.types import Types

NUMERIC_8_2 = ((8 << 16) | 2) + 4
COLUMNS = (RelationColumn("id", True, 23, -1), RelationColumn("price", False, 1700, NUMERIC_8_2))
NAMES = Names("CREEK", "shop")


async def follow(url: str, count: int, after: int | None = None) -> int:
    """Print some changes, and return where to go on."""
    async with creek.connect(url) as client, client.stream_wal("shop", "public.orders", after=after) as changes:
        for _ in range(count):
            change = await anext(changes)
            print(f"{change.source.lsn} {change.ordinal} {change.op} {change.after}")
        return changes.position


async def describe(url: str) -> None:
    async with creek.connect(url) as client:
        schema = await client.get_last_schema("shop", "public.orders")
        print(f"{schema.source} has schema {schema.fingerprint}")


async def publish(url: str) -> None:
    """What a producer does, for four rows of one transaction."""
    schema = wal_schema(Relation(1, "public", "orders", "d", COLUMNS), Types.builtin(), NAMES.generation)
    parsed, now = fastavro.parse_schema(json.loads(schema.text)), datetime.now(UTC)
    source = {"name": "dummy", "tx_at": now, "db": "shop", "schema": "public", "table": "orders", "tx_id": 504}
    source |= {"last_lsn": "0/17FA0E5", "lsn": "0/17FA337"}
    connection = await nats.connect(url)
    stream = connection.jetstream()
    for kind in Kind:
        await stream.add_stream(StreamConfig(name=NAMES.stream(kind), subjects=[NAMES.stream_subject(kind)]))
    told = SchemaMessage(schema.name, schema.text, "public.orders", now).to_json()
    await stream.publish(NAMES.subject(Kind.SCHEMA, "public", "orders"), packets(told, 1_000_000)[0])
    for number in range(4):
        content = {"fingerprint": schema.name, "source": source, "op": "c", "sent_at": now, "before": None}
        buffer = io.BytesIO(b"\xc3\x01" + schema.fingerprint)
        buffer.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(buffer, parsed, {**content, "after": {"id": number, "price": Decimal("9.50") + number}})
        (packet,) = packets(buffer.getvalue(), 1_000_000)
        headers = {"Nats-Msg-Id": f"7301.1.shop.slot.17FA337.{number}-seq-0"}
        await stream.publish(NAMES.subject(Kind.WAL, "public", "orders"), packet, headers=headers)
    await connection.close()


async def main() -> None:
    with EmbeddedNats() as server:
        await publish(server.url)
        await describe(server.url)
        position = await follow(server.url, 3)
        print(f"stopped in the middle of a transaction, at {position}")
        await follow(server.url, 1, after=position)


asyncio.run(main())
