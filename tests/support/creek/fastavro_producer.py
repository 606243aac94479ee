"""A producer of Creek messages without Postgres and Spark: it writes what a test says to a real NATS, by fastavro."""

import asyncio
import io
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import fastavro
import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from headwater.creek.framing import packets
from headwater.creek.messages import EOF, SchemaMessage, SnapshotHeader
from headwater.creek.names import Generation, Kind, Names, snapshot_suffix
from headwater.creek.schema import AvroSchema, row_schema, wal_schema
from headwater.model import Lsn
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.types import Types

AT = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
# Room for the headers beside a packet in the largest message that the server takes.
HEADER_ROOM = 1024

OIDS = {type_.name: oid for oid, type_ in Types.builtin().items()}


def relation(table: str = "public.orders", columns: str = "id! int4, data text", identity: str = "d") -> Relation:
    """A table from `name type, ...`; an exclamation mark follows the name of a key column."""
    schema, name = table.split(".", 1)
    return Relation(1, schema, name, identity, tuple(map(_column, columns.split(", "))))


def _column(text: str) -> RelationColumn:
    name, type_ = text.split(" ")
    base, _, modifiers = type_.partition("(")
    precision, _, scale = modifiers.removesuffix(")").partition(":")
    typmod = (int(precision) << 16 | int(scale or 0)) + 4 if modifiers else -1
    return RelationColumn(name.removesuffix("!"), name.endswith("!"), OIDS[base], typmod)


def avro(schema: AvroSchema, value: object) -> bytes:
    """A datum, by somebody else's encoder."""
    parsed = fastavro.parse_schema(json.loads(schema.text))
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed, value)
    return buffer.getvalue()


@dataclass
class Producer:
    """Publishes to the streams of one database; every change is a transaction of its own unless it is given an LSN."""

    client: Client
    names: Names
    chunk: int
    table: Relation = field(default_factory=relation)
    widened: bool = False
    lsn: int = 0x100
    ordinal: int = 0
    requests: list[bytes] = field(default_factory=list)

    @property
    def schema(self) -> AvroSchema:
        return wal_schema(self.table, Types.builtin(), self.names.generation, widened=self.widened)

    @property
    def subject(self) -> str:
        return self.names.subject(Kind.WAL, self.table.schema, self.table.name)

    async def make_streams(self) -> None:
        for kind in Kind:
            await self.client.jetstream().add_stream(
                StreamConfig(name=self.names.stream(kind), subjects=[self.names.stream_subject(kind)])
            )

    async def publish(self, subject: str, message: bytes, id: str = "", headers: Mapping[str, str] | None = None) -> int:
        """The place of the last packet in its stream."""
        sequence = 0
        for number, packet in enumerate(packets(message, self.chunk)):
            ids = {"Nats-Msg-Id": f"{id}-seq-{number}"} if id else {}
            acknowledged = await self.client.jetstream().publish(subject, packet, headers={**ids, **(headers or {})} or None)
            sequence = acknowledged.seq
        return sequence

    async def publish_schema(self) -> SchemaMessage:
        message = self.schema_message()
        subject = self.names.subject(Kind.SCHEMA, self.table.schema, self.table.name)
        await self.publish(subject, message.to_json())
        return message

    def schema_message(self) -> SchemaMessage:
        return SchemaMessage(self.schema.name, self.schema.text, self.table.table, AT)

    def message(self, op: str, after: object, before: object = None, *, lsn: int | None = None) -> bytes:
        """The bytes of a change."""
        self.ordinal = self.ordinal + 1 if lsn == self.lsn else 0
        self.lsn = self.lsn + 0x10 if lsn is None else lsn
        source = {"name": "dummy", "tx_at": AT, "db": self.names.database, "tx_id": 504, "lsn": str(Lsn(self.lsn))}
        source |= {"schema": self.table.schema, "table": self.table.name, "last_lsn": str(Lsn(self.lsn - 0x10))}
        content = {"fingerprint": self.schema.name, "source": source, "op": op, "sent_at": AT}
        datum = avro(self.schema, {**content, "before": before, "after": after})
        return b"\xc3\x01" + self.schema.fingerprint + datum

    async def change(
        self,
        after: object,
        *,
        op: str = "c",
        before: object = None,
        lsn: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Publish a change as Headwater does, with the id of the event."""
        message = self.message(op, after, before, lsn=lsn)
        id = f"7301.1.{self.names.database}.slot.{self.lsn:X}.{self.ordinal}"
        return await self.publish(self.subject, message, id, headers)

    async def changes(self, first: int, last: int) -> None:
        """Publish rows by their number, each in a transaction of its own."""
        for number in range(first, last + 1):
            await self.change({"id": number, "data": f"row {number}"})

    def topic(self, at: datetime = AT, random: bytes = b"\xab\x12") -> str:
        return self.names.snapshot(self.table.schema, self.table.name, snapshot_suffix(at, random))

    async def snapshot(
        self,
        rows: Sequence[Mapping[str, Any]],
        topic: str | None = None,
        *,
        end: bytes | None = EOF,
        headers: Mapping[str, str] | None = None,
        end_headers: Mapping[str, str] | None = None,
    ) -> str:
        """Publish a snapshot; without an `end`, it stays open."""
        subject = topic or self.topic()
        schema = row_schema(self.table, Types.builtin(), widened=self.widened)
        header = SnapshotHeader("", schema.name, schema.text, 504, Lsn(self.lsn), AT, len(rows))
        await self.publish(subject, header.to_json(), f"{subject}-header", headers)
        for number, row in enumerate(rows, 1):
            await self.publish(subject, avro(schema, row), f"{subject}-row-{number}")
        if end is not None:
            await self.publish(subject, end, f"{subject}-eof", end_headers)
        return subject

    async def publish_row(self, topic: str, row: Mapping[str, Any]) -> None:
        """Publish a row of a snapshot that was left open."""
        await self.publish(topic, avro(row_schema(self.table, Types.builtin(), widened=self.widened), row))

    async def answer(self, subjects: Sequence[str], body: bytes, headers: dict[str, str] | None = None) -> None:
        """Answer every request on some subjects with the same body."""

        async def reply(message: Msg) -> None:
            self.requests.append(message.data)
            await self.client.publish(message.reply, body, headers=headers)

        for subject in subjects:
            await self.client.subscribe(subject, cb=reply)
        await self.settle()

    async def settle(self) -> None:
        """Wait until the server is there and has taken all that was sent; the driver's own `flush` may overtake others."""
        async with asyncio.timeout(15):
            while True:
                try:
                    await self.client.jetstream(timeout=0.5).account_info()
                    return
                except nats.errors.Error:
                    # It is not connected again yet.
                    continue


@asynccontextmanager
async def producer(
    url: str, *, root: str | None = None, database: str = "shop", generation: Generation = Generation.ONE
) -> AsyncIterator[Producer]:
    """A producer whose streams are there, in a namespace that nobody else has: tests share a server."""
    client = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_quiet)
    try:
        names = Names(root or f"T{uuid.uuid4().hex[:12]}", database, generation)
        made = Producer(client, names, client.max_payload - 7 - HEADER_ROOM)
        await made.make_streams()
        yield made
    finally:
        await client.close()


async def _quiet(_: Exception) -> None:
    """A server that tests stop is no news."""


async def first(messages: AsyncIterator[Any], count: int, seconds: float = 15) -> list[Any]:
    """As many items of an iterator, which may be endless."""
    async with asyncio.timeout(seconds):
        return [await anext(messages) for _ in range(count)]
