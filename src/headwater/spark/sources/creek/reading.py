"""The messages of one schema taken apart: what is around the rows, and the rows by columns. Pure.

All are read in step. Should one be odd, all are read one by one, which takes longer, and the odd one is told apart.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from headwater.creek.decode.forms import TEXT
from headwater.creek.decode.rows import list_reader
from headwater.creek.decode.shape import Enumeration, Record, Schema
from headwater.creek.decode.wal import Envelope, Source, decode_message
from headwater.errors import BrokerError, MessageError
from headwater.model import Lsn, Op
from headwater.spark.sources.creek.columns import Odd, Walk, read_record
from headwater.spark.sources.creek.messages import LEAST_BYTES, Ints, Messages

# Time of the commit in microseconds of Unix time, transaction, commit position.
Facts: TypeAlias = tuple[Ints, Ints, Ints]

_MAGIC = np.frombuffer(b"\xc3\x01", np.uint8)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NUMBERS = frozenset({"tx_at", "tx_id"})


class ChangeKind(Enum):
    """What a message is to the server: an update that tells the old row is a kind of its own."""

    INSERT = auto()
    UPDATE = auto()
    MOVE = auto()
    DELETE = auto()
    TRUNCATE = auto()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A message that is none, or none of its schema."""

    sequence: int
    message: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """Changes of one kind: which of the messages they are, in order, what is known of each, and the rows by columns."""

    kind: ChangeKind
    numbers: Ints
    facts: Facts
    old: Sequence[pa.StringArray] = ()
    new: Sequence[pa.StringArray] = ()

    def between(self, first: int, last: int) -> "Part":
        """Those of the messages from one number to another."""
        start, end = np.searchsorted(self.numbers, [first, last + 1]).tolist()
        at, xids, lsns = (fact[start:end] for fact in self.facts)
        old, new = ([column.slice(start, end - start) for column in columns] for columns in (self.old, self.new))
        return replace(self, numbers=self.numbers[start:end], facts=(at, xids, lsns), old=old, new=new)


class MessageReader:
    """Reads the messages of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._envelope = Envelope(schema, list_reader(schema.before, TEXT), list_reader(schema.after, TEXT))
        source = schema.parts["source"].record
        self._source = tuple(field.name for field in source.fields) if source else ()
        (node,) = schema.parts["op"].shape.branches
        self._ops = [Op(symbol) for symbol in node.symbols] if isinstance(node, Enumeration) else []

    def read(self, messages: Messages, numbers: Ints) -> tuple[list[Part], list[Unreadable]]:
        """The messages of some numbers by kind, and those that cannot be read."""
        try:
            return list(self._in_step(messages, numbers)), []
        except Odd:
            return self._one_by_one(messages, numbers)

    def _in_step(self, messages: Messages, numbers: Ints) -> Iterable[Part]:
        starts, ends = messages.bounds[numbers], messages.bounds[numbers + 1]
        raw = np.frombuffer(messages.data, np.uint8)
        if (ends - starts <= LEAST_BYTES).any() or (raw[starts[:, None] + np.arange(2)] != _MAGIC).any():
            raise Odd
        walk = Walk(messages.data, starts + LEAST_BYTES, ends)
        walk.extents()
        at, xids, lsns = self._read_source(walk)
        ops = walk.byte()
        if (ops & 1).any() or (ops >> 1 >= len(self._ops)).any():
            raise Odd
        walk.longs()
        codes = ops >> 1
        for code in np.unique(codes).tolist():
            index = np.flatnonzero(codes == code)
            part = walk.of(index)
            facts = (at[index], xids[index], lsns[index])
            yield from self._read_rows(self._ops[code], part, numbers[index], facts)

    def _read_source(self, walk: Walk) -> Facts:
        found: dict[str, Any] = {}
        for name in self._source:
            if name in _NUMBERS:
                found[name] = walk.longs()
            elif name == "lsn":
                found[name] = walk.texts()
            else:
                walk.extents()
        return found["tx_at"], found["tx_id"], _lsns(found["lsn"])

    def _read_rows(self, op: Op, walk: Walk, numbers: Ints, facts: Facts) -> Iterable[Part]:
        """The rows of messages of one operation, all of which have the same rows."""
        old = self._read_row(walk, self._schema.before)
        new = self._read_row(walk, self._schema.after)
        walk.require_end()
        kind = kind_of(op, has_old=old is not None, has_new=new is not None)
        if kind is None:
            raise Odd
        yield Part(kind, numbers, facts, old or (), new or ())

    @staticmethod
    def _read_row(walk: Walk, record: Record) -> list[pa.StringArray] | None:
        branch = np.unique(walk.byte()).tolist()
        if branch == [0]:
            return None
        if branch != [2]:
            raise Odd
        return read_record(walk, record)

    def _one_by_one(self, messages: Messages, numbers: Ints) -> tuple[list[Part], list[Unreadable]]:
        found: dict[ChangeKind, list[tuple[int, Source, Any, Any]]] = {}
        bad = []
        for number in numbers.tolist():
            sequence, message = messages.at(number)
            try:
                kind, source, old, new = self._read_one(message)
            except BrokerError as error:
                bad.append(Unreadable(sequence, message, str(error)))
            else:
                found.setdefault(kind, []).append((number, source, old, new))
        return [_collected(kind, rows, self._schema) for kind, rows in found.items()], bad

    def _read_one(self, message: bytes) -> tuple[ChangeKind, Source, Any, Any]:
        _, datum = decode_message(message)
        _, source, op, _, old, new = self._envelope.read(datum)
        kind = kind_of(op, has_old=old is not None, has_new=new is not None)
        if kind is None:
            raise MessageError(f"a message of operation {op.value!r} lacks its row")
        return kind, source, old, new


def kind_of(op: Op, *, has_old: bool, has_new: bool) -> ChangeKind | None:
    """What a message of an operation is; None if it lacks a row.

    Creek tells the key of every update, and takes it from the new row where it stayed. The server tells only old ones.
    """
    match op:
        case Op.TRUNCATE:
            return ChangeKind.TRUNCATE
        case Op.DELETE:
            return ChangeKind.DELETE if has_old else None
        case Op.UPDATE_KEY if has_old and has_new:
            return ChangeKind.MOVE
        case Op.INSERT | Op.READ if has_new:
            return ChangeKind.INSERT
        case Op.UPDATE | Op.UPDATE_KEY if has_new:
            return ChangeKind.UPDATE
        case _:
            return None


def _collected(kind: ChangeKind, rows: Sequence[tuple[int, Source, Any, Any]], schema: Schema) -> Part:
    """Rows that were read one by one, by columns."""
    numbers = np.array([number for number, *_ in rows], np.int64)
    sources = [source for _, source, *_ in rows]
    facts = [((source.tx_at - _EPOCH) // _MICROSECOND, source.tx_id, int(source.lsn)) for source in sources]
    at, xids, lsns = (np.array(fact, np.int64) for fact in zip(*facts, strict=True))
    has_old = kind in (ChangeKind.MOVE, ChangeKind.DELETE)
    has_new = kind in (ChangeKind.INSERT, ChangeKind.UPDATE, ChangeKind.MOVE)
    old = _by_columns([row[2] for row in rows], schema.before) if has_old else ()
    new = _by_columns([row[3] for row in rows], schema.after) if has_new else ()
    return Part(kind, numbers, (at, xids, lsns), old, new)


def _by_columns(rows: Sequence[Sequence[str | None]], record: Record) -> list[pa.StringArray]:
    return [pa.array([row[number] for row in rows], pa.string()) for number in range(len(record.fields))]


def _lsns(texts: pa.StringArray) -> Ints:
    """Positions as numbers; those of a transaction are the same text."""
    encoded = texts.dictionary_encode()
    try:
        known = np.array([int(Lsn.parse(text)) for text in encoded.dictionary.to_pylist()], np.int64)
    except (ValueError, OverflowError) as exc:
        raise Odd from exc
    return known[encoded.indices.to_numpy()] if len(texts) else np.zeros(0, np.int64)
