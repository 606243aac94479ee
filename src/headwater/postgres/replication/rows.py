"""A batch decoded row by row, for people and for row-wise code: changes and logical messages in the order of the stream."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeAlias

from headwater.errors import DecodeError
from headwater.model import UNCHANGED, Change, LogicalMessage, Op, Position, Row, Unchanged
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.columnar import parse_relation
from headwater.postgres.replication.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Tuple,
    Update,
    Value,
)
from headwater.postgres.replication.pgoutput import decode
from headwater.postgres.types import Types, to_python

# Makes, for a type by its oid, the function from a value's text to what is wanted: `to_python`, or `to_json` for fragments.
Convert: TypeAlias = Callable[[Types, int], Callable[[str], object]]


def decode_rows(batch: Batch, types: Types, convert: Convert = to_python) -> Iterator[Change | LogicalMessage]:
    """The batch's row changes and logical messages, with the values of their columns as `convert` makes them."""
    rows = _Rows(batch, types, convert)
    data = memoryview(batch.data)
    for start, end in pairwise(batch.bounds.tolist()):
        yield from rows.message(data[start:end])


class _Rows:
    """One batch being decoded."""

    def __init__(self, batch: Batch, types: Types, convert: Convert) -> None:
        self._types, self._convert, self._streamed = types, convert, batch.streamed
        self._relations = {oid: parse_relation(message) for oid, message in batch.relations.items()}
        self._begin, self._ordinal = batch.begin, batch.first_ordinal

    def message(self, data: memoryview) -> Iterator[Change | LogicalMessage]:
        match decode(data, streamed=self._streamed):
            case Begin() as begin:
                self._begin, self._ordinal = begin, 0
            case Commit():
                self._begin = None
            case Relation() as relation:
                self._relations[relation.oid] = relation
            case Insert(oid, new):
                yield self._change(Op.INSERT, oid, None, None, new)
            case Update(oid, kind, old, new):
                yield self._change(Op.UPDATE_KEY if kind == "K" else Op.UPDATE, oid, kind, old, new)
            case Delete(oid, kind, old):
                yield self._change(Op.DELETE, oid, kind, old, None)
            case Truncate(oids):
                for oid in oids:
                    yield self._change(Op.TRUNCATE, oid, None, None, None)
            case Message() as message:
                yield self._logical_message(message)

    def _change(self, op: Op, oid: int, kind: str | None, old: Tuple | None, new: Tuple | None) -> Change:
        if self._begin is None:
            raise DecodeError("a change comes before the Begin of its transaction")
        if oid not in self._relations:
            raise DecodeError(f"relation {oid} was never described")
        relation, begin = self._relations[oid], self._begin
        before = None if old is None else self._row(relation, old, only_key=kind == "K")
        after = None if new is None else self._row(relation, new)
        if before and after and kind == "O":
            # The whole old row has what the server did not send again.
            after = {name: before[name] if value is UNCHANGED else value for name, value in after.items()}
        position = Position(begin.commit_lsn, self._ordinal)
        self._ordinal += 1
        key = _key(relation, after if before is None else before)
        return Change(position, begin.xid, begin.committed_at, op, relation.schema, relation.name, key, before, after)

    def _logical_message(self, message: Message) -> LogicalMessage:
        begin = self._begin if message.transactional else None
        place = Position(begin.commit_lsn, self._ordinal) if begin else None
        xid, committed_at = (begin.xid, begin.committed_at) if begin else (None, None)
        return LogicalMessage(message.lsn, message.prefix, message.content, place, xid, committed_at)

    def _row(self, relation: Relation, values: Tuple, *, only_key: bool = False) -> Row:
        if len(values) != len(relation.columns):
            raise DecodeError(
                f"a row does not have the {len(relation.columns)} columns of {relation.schema}.{relation.name}"
            )
        return {
            column.name: self._value(value, column.type_oid)
            for column, value in zip(relation.columns, values, strict=True)
            if column.key or not only_key
        }

    def _value(self, value: Value, oid: int) -> object:
        if value is None or isinstance(value, Unchanged):
            return value
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise DecodeError("a text in it is not UTF-8") from None
        return self._convert(self._types, oid)(text)


def _key(relation: Relation, row: Row | None) -> Row | None:
    """The columns of the replica identity; None when there is none, or no row."""
    if row is None:
        return None
    return {column.name: row[column.name] for column in relation.columns if column.key} or None
