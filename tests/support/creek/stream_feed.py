"""Feeds Creek streams in tests: changes written as pgoutput, encoded as a producer does, and stored on a real NATS."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.publisher import Outgoing, Publisher
from headwater.brokers.nats.streams import ensure_stream
from headwater.creek.encode import encode_batch, encode_rows
from headwater.creek.framing import frame
from headwater.creek.messages import EOF, SchemaMessage, SnapshotHeader
from headwater.creek.names import Kind, Names
from headwater.creek.schema import AvroSchema, row_schema
from headwater.model import Lineage, Lsn, Position
from headwater.postgres.replication.batch import Batch, lay_out, relations_in, tags_of
from headwater.postgres.replication.pgoutput import parse_relation
from headwater.postgres.types import Types
from tests.support.capture.pgoutput_writer import begin, commit

_SENT_AT = 1_700_000_000_500_000


@dataclass
class Feed:
    """A producer of one database: it makes the streams, and stores what it is given."""

    access: NatsAccess
    names: Names
    # The largest part of a message in a packet; small ones make messages of several packets.
    chunk: int = 1_000_000
    lineage: Lineage = field(default_factory=lambda: Lineage("7", 1, (), "shop", "creek"))

    def __post_init__(self) -> None:
        self._publisher = Publisher(self.access)
        self._relations: dict[int, bytes] = {}
        self._published: set[str] = set()
        self._numbers = itertools.count(1)
        with Link(self.access) as link:
            for kind in Kind:
                ensure_stream(link, self.names.stream(kind), [self.names.stream_subject(kind)], "a test's")

    def close(self) -> None:
        self._publisher.close()

    def transaction(self, commit_lsn: int, messages: Sequence[bytes], *, xid: int = 1, micros: int = 1) -> None:
        """A transaction of messages as `pgoutput_writer` makes them, with those that describe tables."""
        data, bounds = lay_out([begin(commit_lsn, micros, xid), *messages, commit(commit_lsn, commit_lsn + 8, micros)])
        self._relations.update(relations_in(data, bounds, tags_of(data, bounds), 0))
        batch = Batch(data, bounds, dict(self._relations), len(messages), Lsn(commit_lsn + 8))
        self.batch(batch)

    def batch(self, batch: Batch) -> None:
        for encoded in encode_batch(
            batch,
            Types.builtin(),
            database=self.names.database,
            generation=self.names.generation,
            sent_at=_SENT_AT,
            previous=Lsn(0),
        ):
            relation = encoded.relation
            for schema in filter(None, (encoded.schema, encoded.widened)):
                self.schema(schema, relation.schema, relation.name)
            places = zip(encoded.places.commit_lsn.tolist(), encoded.places.ordinal.tolist(), strict=True)
            ids = [self.lineage.event_id(Position(Lsn(lsn), ordinal)) for lsn, ordinal in places]
            headers = None
            if encoded.unchanged is not None:
                lines = [None if one is None else f"Headwater-Unchanged: {one}\r\n" for one in encoded.unchanged.to_pylist()]
                headers = pa.array(lines, pa.binary())
            self.store(self.names.subject(Kind.WAL, relation.schema, relation.name), encoded.payloads, ids, headers)

    def schema(self, schema: AvroSchema, namespace: str, table: str) -> None:
        if schema.name not in self._published:
            self._published.add(schema.name)
            body = SchemaMessage(schema.name, schema.text, f"{namespace}.{table}", datetime.now(UTC)).to_json()
            self.store(
                self.names.subject(Kind.SCHEMA, namespace, table), pa.array([body], pa.binary()), [f"s-{schema.name}"]
            )

    def snapshot(
        self,
        relation: bytes,
        columns: Sequence[Sequence[str | None]],
        *,
        suffix: str,
        lsn: int,
        snapshot: str | None = None,
        until: int | None = None,
        ends: bool = True,
    ) -> str:
        """Store a snapshot of rows, given by columns, and return its topic."""
        table = parse_relation(relation)
        topic = self.names.snapshot(table.schema, table.name, suffix)
        rows = pa.RecordBatch.from_arrays(
            [pa.array(column, pa.string()) for column in columns], [column.name for column in table.columns]
        )
        data, misfits = encode_rows(rows, table, Types.builtin())
        is_widened = bool(misfits.any())
        if is_widened:
            data, _ = encode_rows(rows, table, Types.builtin(), widened=True)
        schema = row_schema(table, Types.builtin(), widened=is_widened)
        header = SnapshotHeader("", schema.name, schema.text, 1, Lsn(lsn), datetime.now(UTC), rows.num_rows)
        lines = ""
        if snapshot is not None and until is not None:
            lines = f"Headwater-Snapshot: {snapshot}\r\nHeadwater-Until: {Lsn(until)}\r\n"
        self.store(
            topic, pa.array([header.to_json()], pa.binary()), [f"{topic}-h"], pa.array([lines.encode() or None], pa.binary())
        )
        self.store(topic, data, [f"{topic}-row-{number}" for number in range(rows.num_rows)])
        if ends:
            end = None if snapshot is None else pa.array([f"Headwater-Rows: {rows.num_rows}\r\n".encode()], pa.binary())
            self.store(topic, pa.array([EOF], pa.binary()), [f"{topic}-eof"], end)
        return topic

    def store(self, subject: str, payloads: pa.Array, ids: Sequence[str], headers: pa.Array | None = None) -> None:
        packets = frame(payloads, self.chunk)
        names = [f"{ids[m]}-seq-{n}" for m, n in zip(packets.messages.tolist(), packets.numbers.tolist(), strict=True)]
        more = None if headers is None else headers.take(pa.array(np.asarray(packets.messages)))
        self.store_packets(subject, packets.packets, names, more)

    def store_packets(self, subject: str, packets: pa.Array, ids: Sequence[str], headers: pa.Array | None = None) -> None:
        done = self._publisher.publish(Outgoing(subject, pa.array(ids), packets, headers))
        assert not done.refused, done.refused
        assert not done.duplicates, "an id came twice"
