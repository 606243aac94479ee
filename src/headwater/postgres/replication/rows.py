"""A batch decoded row by row, for people and for row-wise code: changes and logical messages in the order of the stream."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TypeAlias

from headwater.errors import DecodeError
from headwater.model import UNCHANGED, Change, LogicalMessage, Lsn, Op, Position, Row
from headwater.postgres.replication.batch import Batch, misfit, placed
from headwater.postgres.replication.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Origin,
    PgoutputMessage,
    Relation,
    Truncate,
    Tuple,
    Type,
    Update,
)
from headwater.postgres.replication.pgoutput import decode, parse_relation, text_of
from headwater.postgres.types import Types, to_python

# Makes, for a type by its oid, the function from a value's text to what is wanted: `to_python`, or `to_json` for fragments.
Convert: TypeAlias = Callable[[Types, int], Callable[[str], object]]


def decode_rows(batch: Batch, types: Types, convert: Convert = to_python) -> Iterator[Change | LogicalMessage]:
    """The batch's row changes and logical messages, with the values of their columns as `convert` makes them.

    What the server did not send of a new row is taken from the old one as far as that was sent: all of it under
    `replica identity full`, else the columns of the identity. An update is `Op.UPDATE_KEY` when the text of a column of the
    identity differs; an old key alone does not say so, for the server also sends it when a key is stored out of line
    (TOAST). Under `replica identity full` the stream does not tell the key, so every update is `Op.UPDATE`.

    A DecodeError has the commit LSN of its transaction, and names table and column of a value that its type cannot hold.
    """
    rows = _Rows(batch, types, convert)
    data = memoryview(batch.data)
    ordinals = repeat(None) if batch.ordinals is None else batch.ordinals.tolist()
    for (start, end), ordinal in zip(pairwise(batch.bounds.tolist()), ordinals, strict=False):
        try:
            yield from rows.message(data[start:end], ordinal)
        except DecodeError as error:
            raise placed(error, rows.commit_lsn, chr(data[start]) if start < end else None) from error


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    is_key: bool
    read: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class _Table:
    """A relation with what to do with each of its columns, worked out once for all its rows."""

    relation: Relation
    columns: tuple[_Column, ...]

    def row(self, values: Tuple, *, only_key: bool = False) -> Row:
        if len(values) != len(self.columns):
            raise DecodeError(f"a row does not have the {len(self.columns)} columns of {self.relation.table}")
        name = ""
        try:
            return {
                (name := column.name): column.read(text_of(value)) if isinstance(value, bytes) else value
                for column, value in zip(self.columns, values, strict=True)
                if column.is_key or not only_key
            }
        except DecodeError as error:
            raise misfit(error, self.relation, name) from error

    def moves(self, old: Tuple, new: Tuple) -> bool:
        """Whether the row gets another key."""
        return any(
            column.is_key and value is not UNCHANGED and value != previous
            for column, previous, value in zip(self.columns, old, new, strict=True)
        )

    def key(self, row: Row | None) -> Row | None:
        """The columns of the replica identity; None when there is none, or no row."""
        if row is None:
            return None
        return {column.name: row[column.name] for column in self.columns if column.is_key} or None


class _Rows:
    """One batch being decoded."""

    def __init__(self, batch: Batch, types: Types, convert: Convert) -> None:
        self._batch, self._types, self._convert = batch, types, convert
        self._begin, self._ordinal = batch.begin, batch.first_ordinal
        self._tables: dict[int, _Table] = {}

    @property
    def commit_lsn(self) -> Lsn | None:
        """Of the transaction that is being read."""
        return None if self._begin is None else self._begin.commit_lsn

    def message(self, data: memoryview, ordinal: int | None) -> Iterator[Change | LogicalMessage]:
        """What a message tells; it has the given ordinal, or the next one."""
        message = decode(data, streamed=self._batch.streamed)
        self._ordinal = self._ordinal if ordinal is None else ordinal
        match message:
            case Insert(oid, new):
                yield self._change(Op.INSERT, oid, None, None, new)
            case Update(oid, kind, old, new):
                yield self._change(Op.UPDATE, oid, kind, old, new)
            case Delete(oid, kind, old):
                yield self._change(Op.DELETE, oid, kind, old, None)
            case Truncate(oids):
                for oid in oids:
                    yield self._change(Op.TRUNCATE, oid, None, None, None)
            case Message():
                yield self._logical_message(message)
            case _:
                self._note(message)

    def _note(self, message: PgoutputMessage) -> None:
        """Take in what is no change itself, but says how to read those that follow."""
        match message:
            case Begin():
                self._begin, self._ordinal = message, 0
            case Commit():
                self._begin = None
            case Relation():
                self._tables[message.oid] = self._compile(message)
            case Origin() | Type():
                pass
            case _:
                raise DecodeError("it has no place in a batch")

    def _change(self, op: Op, oid: int, kind: str | None, old: Tuple | None, new: Tuple | None) -> Change:
        begin = self._begin
        if begin is None:
            raise DecodeError("a change comes before the Begin of its transaction")
        table = self._tables.get(oid) or self._known_before(oid)
        before = None if old is None else table.row(old, only_key=kind == "K")
        after = None if new is None else table.row(new)
        if old is not None and new is not None and before and after:
            after = {name: before.get(name, value) if value is UNCHANGED else value for name, value in after.items()}
            if kind == "K" and table.moves(old, new):
                op = Op.UPDATE_KEY
        position = Position(begin.commit_lsn, self._ordinal)
        self._ordinal += 1
        key = table.key(after if before is None else before)
        relation = table.relation
        return Change(position, begin.xid, begin.committed_at, op, relation.schema, relation.name, key, before, after)

    def _logical_message(self, message: Message) -> LogicalMessage:
        begin = self._begin if message.transactional else None
        place = Position(begin.commit_lsn, self._ordinal) if begin else None
        xid, committed_at = (begin.xid, begin.committed_at) if begin else (None, None)
        return LogicalMessage(message.lsn, message.prefix, message.content, place, xid, committed_at)

    def _known_before(self, oid: int) -> _Table:
        """The table as an earlier batch described it."""
        if oid not in self._batch.relations:
            raise DecodeError(f"relation {oid} was never described")
        table = self._tables[oid] = self._compile(parse_relation(self._batch.relations[oid]))
        return table

    def _compile(self, relation: Relation) -> _Table:
        columns = (_Column(c.name, c.key, self._convert(self._types, c.type_oid)) for c in relation.columns)
        return _Table(relation, tuple(columns))
