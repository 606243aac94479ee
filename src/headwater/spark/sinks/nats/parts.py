"""From what a partition holds to messages: frames, rows of whole tables, and rows that a transform has made. Pure.

A part has messages of one table in order, and makes the letters of those that are refused.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.creek.encode import Encoded, encode_batch, encode_read
from headwater.creek.names import Kind, Names
from headwater.creek.schema import AvroSchema
from headwater.errors import DecodeError
from headwater.model import Lineage, Lsn, Op, Position
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.columnar import Ints, Places
from headwater.postgres.replication.messages import Relation
from headwater.postgres.types import Types
from headwater.spark.frame import Chunk, Frame
from headwater.spark.letters import (
    Letter,
    as_read,
    frame_of_rows,
    letter_of_envelope,
    letter_of_read_envelope,
    letters_at,
    letters_of_rows,
    read_envelope_id,
    without_misfits,
)
from headwater.spark.sinks.lines import unplaced
from headwater.spark.sinks.nats.debezium import JsonMessages, to_json_messages
from headwater.spark.sinks.nats.identity import event_ids, in_header, read_ids
from headwater.spark.sinks.nats.outgoing import Messages
from headwater.spark.sources.envelope import SCHEMA as ENVELOPE_COLUMNS
from headwater.spark.sources.envelope import chunk_envelopes, to_envelopes
from headwater.spark.sources.protect import Protection

# The letters of messages by their place, given why each is refused.
MakeLetters: TypeAlias = Callable[[Mapping[int, str]], list[Letter]]

_NEEDED: Final = ("commit_lsn", "ordinal", "committed_at", "op", "schema", "table")
_UNMASKED: Final = Protection()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """The schemas that the messages of a part are under."""

    relation: Relation
    schema: AvroSchema
    widened: AvroSchema | None


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of one table; `is_read` if they are rows of a whole table, of which others may be under way elsewhere.

    `places` are those of changes, where they are in JSON.
    """

    messages: Messages
    letters: MakeLetters
    use: SchemaUse | None = None
    is_read: bool = False
    places: Places | None = None


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose messages they are: the sink, and the names that it uses."""

    pipeline: str
    sink: str
    names: Names

    @property
    def addressee(self) -> dict[str, str]:
        return {"pipeline": self.pipeline, "sink": self.sink}


class CreekParts:
    """Messages of the Creek wire; `previous` is the commit LSN of the transaction before the first one."""

    def __init__(self, whose: Whose, previous: Lsn) -> None:
        self._whose, self._previous = whose, previous

    def of(self, rows: Frame | Chunk) -> tuple[list[Part], list[Letter]]:
        """The parts, and the letters of rows with values that are none of their type."""
        if isinstance(rows, Frame):
            return self._of_frame(rows)
        return self._of_chunk(rows)

    def _of_frame(self, frame: Frame) -> tuple[list[Part], list[Letter]]:
        letters: list[Letter] = []
        try:
            encoded = self._encoded(frame.batch, frame.types)
        except DecodeError:
            frame, letters = without_misfits(frame, **self._whose.addressee, check=self._encoded)
            encoded = self._encoded(frame.batch, frame.types)
        self._previous = Lsn(max((int(one.places.commit_lsn[-1]) for one in encoded), default=self._previous))
        return [self._part(frame, one) for one in encoded], letters

    def _part(self, frame: Frame, encoded: Encoded) -> Part:
        places = encoded.places
        ids = event_ids(frame.lineage, places.commit_lsn, places.ordinal)
        return Part(self._messages(encoded, ids), _letters_of_frame(frame, places, self._whose), _use(encoded))

    def _of_chunk(self, chunk: Chunk) -> tuple[list[Part], list[Letter]]:
        letters: list[Letter] = []
        try:
            encoded = self._read(chunk, chunk.rows)
            ids = read_ids(chunk)
        except DecodeError:
            kept, letters = _without_misfits(chunk, self._whose)
            encoded, ids = self._read(chunk, chunk.rows.take(kept)), read_ids(chunk).take(kept)
        else:
            kept = pa.array(np.arange(chunk.rows.num_rows))

        def refused(reasons: Mapping[int, str]) -> list[Letter]:
            rows = {kept[place].as_py(): reason for place, reason in reasons.items()}
            return letters_of_rows(chunk, rows, **self._whose.addressee)

        return [Part(self._messages(encoded, ids), refused, _use(encoded), is_read=True)], letters

    def _read(self, chunk: Chunk, rows: pa.RecordBatch) -> Encoded:
        names = self._whose.names
        return encode_read(
            rows,
            chunk.relation,
            chunk.types,
            database=names.database,
            generation=names.generation,
            sent_at=_now(),
            until=chunk.until,
            read_at=(chunk.read_at - _EPOCH) // timedelta(microseconds=1),
        )

    def _encoded(self, batch: Batch, types: Types) -> list[Encoded]:
        names, previous = self._whose.names, self._previous
        return encode_batch(
            batch, types, database=names.database, generation=names.generation, sent_at=_now(), previous=previous
        )

    def _messages(self, encoded: Encoded, ids: pa.StringArray) -> Messages:
        relation = encoded.relation
        return Messages(
            self._whose.names.subject(Kind.WAL, relation.schema, relation.name),
            relation.table,
            ids,
            encoded.ops,
            encoded.places.committed_at,
            encoded.payloads,
            encoded.unchanged,
        )


class JsonParts:
    """Messages in Debezium's envelope."""

    def __init__(self, whose: Whose) -> None:
        self._whose = whose

    def of(self, rows: Frame | Chunk) -> tuple[list[Part], list[Letter]]:
        """The parts, and the letters of rows with values that are none of their type."""
        if isinstance(rows, Frame):
            return self._of_frame(rows)
        return self._of_chunk(rows)

    def of_envelopes(self, rows: pa.RecordBatch, lineage: Lineage, attempt: str) -> tuple[list[Part], list[Letter]]:
        """Rows of the DataFrame `changes`; a transform may have put there what is no JSON."""
        for name in _NEEDED:
            if rows[name].null_count:
                raise unplaced(name)
        bad = _not_json(rows)
        letters = [self._letter(rows, row, lineage, attempt, reason) for row, reason in bad.items()]
        kept = np.setdiff1d(np.arange(rows.num_rows), np.array(list(bad), np.int64))
        rows = rows.take(pa.array(kept)) if bad else rows
        return [self._of_rows(rows, one, lineage, attempt) for one in self._messages(rows)], letters

    def _of_frame(self, frame: Frame) -> tuple[list[Part], list[Letter]]:
        letters: list[Letter] = []
        try:
            rows = _envelopes(frame.batch, frame.types)
        except DecodeError:
            frame, letters = without_misfits(frame, **self._whose.addressee, check=_envelopes)
            rows = _envelopes(frame.batch, frame.types)
        parts = []
        for one in self._messages(rows):
            ids = event_ids(frame.lineage, one.commit_lsn, one.ordinal)
            places = _places(one)
            refused = _letters_of_frame(frame, places, self._whose)
            parts.append(Part(self._published(one, ids), refused, places=places))
        return parts, letters

    def _of_chunk(self, chunk: Chunk) -> tuple[list[Part], list[Letter]]:
        letters: list[Letter] = []
        kept = pa.array(np.arange(chunk.rows.num_rows))
        try:
            rows = chunk_envelopes(chunk, _UNMASKED)
        except DecodeError:
            kept, letters = _without_misfits(chunk, self._whose)
            rows = chunk_envelopes(replace(chunk, rows=chunk.rows.take(kept)), _UNMASKED)
            numbers = pc.add(kept, chunk.first_row).cast(pa.int32())
            rows = rows.set_column(rows.schema.get_field_index("ordinal"), "ordinal", numbers)
        ids = read_ids(chunk).take(kept)

        def refused(reasons: Mapping[int, str]) -> list[Letter]:
            by_row = {kept[place].as_py(): reason for place, reason in reasons.items()}
            return letters_of_rows(chunk, by_row, **self._whose.addressee)

        return [Part(self._published(one, ids), refused, is_read=True) for one in self._messages(rows)], letters

    def _of_rows(self, rows: pa.RecordBatch, one: JsonMessages, lineage: Lineage, attempt: str) -> Part:
        ids = event_ids(lineage, one.commit_lsn, one.ordinal)
        is_read = pc.equal(one.ops, str(Op.READ))
        if pc.any(is_read).as_py():
            found = [in_header(read_envelope_id(_envelope(rows, row), lineage, attempt)) for row in one.rows.tolist()]
            ids = pc.if_else(is_read, pa.array(found, pa.string()), ids)

        def refused(reasons: Mapping[int, str]) -> list[Letter]:
            return [self._letter(rows, int(one.rows[place]), lineage, attempt, reason) for place, reason in reasons.items()]

        return Part(self._published(one, ids), refused, places=_places(one))

    def _letter(self, rows: pa.RecordBatch, row: int, lineage: Lineage, attempt: str, reason: str) -> Letter:
        envelope = _envelope(rows, row)
        if envelope["op"] == Op.READ:
            return letter_of_read_envelope(envelope, lineage, attempt, reason, **self._whose.addressee)
        return letter_of_envelope(envelope, lineage, reason, **self._whose.addressee)

    def _messages(self, rows: pa.RecordBatch) -> Iterator[JsonMessages]:
        names = self._whose.names
        return to_json_messages(rows, database=names.database, name=names.root, sent_at=_now())

    def _published(self, one: JsonMessages, ids: pa.StringArray) -> Messages:
        subject = self._whose.names.subject(Kind.WAL, one.schema, one.table)
        table = f"{one.schema}.{one.table}"
        return Messages(subject, table, ids, one.ops, one.committed_at, one.payloads, one.unchanged, one.keys)


def _places(one: JsonMessages) -> Places:
    return Places(one.commit_lsn, one.ordinal, np.zeros(len(one), np.int64), one.committed_at)


def _use(encoded: Encoded) -> SchemaUse:
    return SchemaUse(encoded.relation, encoded.schema, encoded.widened)


def _letters_of_frame(frame: Frame, places: Places, whose: Whose) -> MakeLetters:
    def refused(reasons: Mapping[int, str]) -> list[Letter]:
        found = {
            Position(Lsn(int(places.commit_lsn[place])), int(places.ordinal[place])): reason
            for place, reason in reasons.items()
        }
        return letters_at(frame, found, **whose.addressee)

    return refused


def _without_misfits(chunk: Chunk, whose: Whose) -> tuple[pa.Array, list[Letter]]:
    """The places of the rows that decode, and the letters of the others."""
    _, letters = without_misfits(frame_of_rows(chunk), **whose.addressee, check=_envelopes)
    bad = np.array([letter.position.ordinal - chunk.first_row for letter in letters], np.int64)
    kept: Ints = np.setdiff1d(np.arange(chunk.rows.num_rows), bad)
    return pa.array(kept), [as_read(letter, chunk) for letter in letters]


def _envelopes(batch: Batch, types: Types) -> pa.RecordBatch:
    if not batch.changes:
        return pa.RecordBatch.from_pylist([], ENVELOPE_COLUMNS)
    return to_envelopes(batch, types, _UNMASKED)


def _not_json(rows: pa.RecordBatch) -> dict[int, str]:
    """The rows that a transform has left with something other than JSON objects, and why they cannot go on."""
    found: dict[int, str] = {}
    for name in ("key", "before", "after"):
        for row, text in enumerate(rows[name].to_pylist()):
            if text is not None and not _is_object(text):
                found[row] = f"{name} is not a JSON object after the transform"
    return dict(sorted(found.items()))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _envelope(rows: pa.RecordBatch, row: int) -> dict[str, Any]:
    found: Sequence[dict[str, Any]] = rows.slice(row, 1).to_pylist()
    return found[0]


def _now() -> int:
    """Microseconds of Unix time."""
    return time.time_ns() // 1000
