"""Changes and rows to the Creek wire: from the server's tuples straight to Avro, by columns, with no rows in between.

A change is `C3 01`, the fingerprint of its schema, and its datum: the envelope with the key or old row and the new row. A
row of a snapshot is its bare datum.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.creek.avro import Column, Mask, Piece, encode_column, join, long, longs, packed, text_of
from headwater.creek.names import Generation
from headwater.creek.schema import OPS, AvroSchema, RowRecord, row_record, wal_schema
from headwater.creek.types import Form
from headwater.errors import DecodeError
from headwater.model import Lsn, Op
from headwater.postgres.replication.batch import Batch, misfit, tags_of
from headwater.postgres.replication.columnar import Group, Ints, Places, as_sent, decode_columns
from headwater.postgres.replication.messages import Relation
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Types, to_json

MAGIC: Final = b"\xc3\x01"
# The header of a message that names the columns which the server did not send, and the update did not touch.
UNCHANGED_HEADER: Final = "Headwater-Unchanged"
# Creek calls every source so.
_SOURCE_NAME: Final = "dummy"
_NULL, _RECORD = b"\0", b"\2"
# The tag of rows that were read rather than changed; the protocol has none for them.
_READ: Final = "r"
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Changes of one table, as it was at that time, in the order of the stream.

    `payloads` are whole messages, not yet in packets. Rows that the schema cannot hold are under `widened`, which is None if
    there are none. `unchanged` has the value of `UNCHANGED_HEADER` for each, NULL for most; None if it is NULL for all.
    """

    relation: Relation
    schema: AvroSchema
    widened: AvroSchema | None
    places: Places
    ops: pa.StringArray
    payloads: pa.Array
    unchanged: pa.StringArray | None

    def __len__(self) -> int:
        return len(self.payloads)


def encode_batch(  # noqa: PLR0913 - what is sent, and what stands in the envelope of each message
    batch: Batch, types: Types, *, database: str, generation: Generation, sent_at: int, previous: Lsn
) -> list[Encoded]:
    """The batch's row changes; those of one table come in the order of the stream.

    `sent_at` is in microseconds of Unix time. `previous` is the commit LSN of the transaction before the batch's first one,
    which generation 1 tells in each message.
    """
    try:
        groups = decode_columns(batch, types, as_sent)
        transactions = _Transactions.of(batch, previous)
        encoder = _Encoder(types, database, generation, sent_at, transactions)
        return [each for same in _by_table(groups) for each in encoder.table(same)]
    except DecodeError:
        # Columns do not tell which change it was. The row decoder refuses the same one, and names its place.
        deque(decode_rows(batch, types, to_json), maxlen=0)
        raise


def encode_rows(rows: pa.RecordBatch, relation: Relation, types: Types, *, widened: bool = False) -> tuple[pa.Array, Mask]:
    """The rows of a snapshot, given as columns of the server's text, as data under `row_schema`; and which do not fit.

    A row that does not fit is NULL. In the widened form every row fits.
    """
    record, count = row_record(relation, types), rows.num_rows
    columns = _columns(relation, record, rows, types, widened=widened)
    data = join([piece for column in columns for piece in column.pieces], count)
    misfits = _misfits(columns, count)
    if not misfits.any():
        return data, misfits
    return pc.if_else(pa.array(misfits), pa.scalar(None, data.type), data), misfits


def encode_read(  # noqa: PLR0913 - what is sent, and what stands in the envelope of each message
    rows: pa.RecordBatch,
    relation: Relation,
    types: Types,
    *,
    database: str,
    generation: Generation,
    sent_at: int,
    until: Lsn,
    read_at: int,
) -> Encoded:
    """Rows of a table as a snapshot saw them, given as columns of the server's text, in the envelope of changes, op `r`.

    `until` is where the WAL ended then, and stands for the commit; `read_at` and `sent_at` are microseconds of Unix time.
    """
    count = rows.num_rows
    places = Places(
        np.full(count, int(until)), np.arange(count), np.zeros(count, np.int64), np.full(count, read_at, np.int64)
    )
    group = Group(relation, _READ, None, places, None, rows, {}, np.zeros(count, np.bool_), (), np.arange(count))
    transactions = _Transactions(np.array([int(until)]), np.array([int(until)]))
    (encoded,) = _Encoder(types, database, generation, sent_at, transactions).table([group])
    return encoded


def _by_table(groups: Sequence[Group]) -> list[list[Group]]:
    found: dict[int, list[Group]] = {}
    for group in groups:
        found.setdefault(group.relation.oid, []).append(group)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Transactions:
    """The transactions of a batch by their commit LSN, in order, and before each the one that came before."""

    commits: Ints
    previous: Ints

    @classmethod
    def of(cls, batch: Batch, previous: Lsn) -> "_Transactions":
        tags = tags_of(batch.data, batch.bounds)
        at = batch.bounds[:-1][tags == ord("B")][:, None] + np.arange(1, 9)
        found = np.frombuffer(batch.data, np.uint8)[at].view(">i8").ravel().astype(np.int64)
        commits = found if batch.begin is None else np.concatenate(([int(batch.begin.commit_lsn)], found))
        return cls(commits, np.concatenate(([int(previous)], commits))[:-1])

    def before(self, commits: Ints) -> Ints:
        return self.previous[np.searchsorted(self.commits, commits)]


@dataclass(frozen=True, slots=True)
class _Part:
    """Changes of one table and kind, encoded."""

    relation: Relation
    messages: Ints
    places: Places
    ops: pa.StringArray
    payloads: pa.Array
    unchanged: pa.StringArray
    is_widened: Mask


class _Encoder:
    """One batch being encoded."""

    def __init__(
        self, types: Types, database: str, generation: Generation, sent_at: int, transactions: _Transactions
    ) -> None:
        self._types, self._database, self._generation = types, database, generation
        self._sent_at, self._transactions = long(sent_at), transactions

    def table(self, groups: list[Group]) -> Iterator[Encoded]:
        """The changes of one table, put into the order of the stream, and parted where it was altered."""
        parts = [self._part(group) for group in groups]
        if len(parts) == 1:
            yield self._encoded(parts[0])
            return
        relations = list(dict.fromkeys(part.relation for part in parts))
        numbers = np.concatenate([np.full(len(part.messages), relations.index(part.relation)) for part in parts])
        order = np.argsort(np.concatenate([part.messages for part in parts]), kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order])) + 1
        for rows in np.split(order, edges):
            yield self._encoded(_taken(parts, relations[numbers[rows[0]]], rows))

    def _encoded(self, part: _Part) -> Encoded:
        schema = wal_schema(part.relation, self._types, self._generation)
        widened = None
        if part.is_widened.any():
            widened = wal_schema(part.relation, self._types, self._generation, widened=True)
        unchanged = None if part.unchanged.null_count == len(part.unchanged) else part.unchanged
        return Encoded(part.relation, schema, widened, part.places, part.ops, part.payloads, unchanged)

    def _part(self, group: Group) -> _Part:
        op, count = _op(group), len(group)
        payloads, is_widened = self._payloads(group, op)
        ops = pa.repeat(pa.scalar(op.value, pa.string()), count)
        return _Part(group.relation, group.messages, group.places, ops, payloads, _unchanged(group), is_widened)

    def _payloads(self, group: Group, op: Op) -> tuple[pa.Array, Mask]:
        """The messages of a group, and which of them are under the widened schema."""
        record = row_record(group.relation, self._types)
        sure = _sure_misfits(record, group)
        if sure.all():
            return self._joined(group, op, record, widened=True)[0], sure
        rows = np.flatnonzero(~sure)
        plain, misfits = self._joined(_rows_of(group, rows) if sure.any() else group, op, record)
        is_widened = sure.copy()
        is_widened[rows] = misfits
        if not is_widened.any():
            return plain, is_widened
        wide, _ = self._joined(_rows_of(group, np.flatnonzero(is_widened)), op, record, widened=True)
        return _interleaved(plain.filter(pa.array(~misfits)), wide, is_widened), is_widened

    def _joined(self, group: Group, op: Op, record: RowRecord, *, widened: bool = False) -> tuple[pa.Array, Mask]:
        """The messages of a group under one schema, and which of them do not fit into it."""
        schema = wal_schema(group.relation, self._types, self._generation, widened=widened)
        pieces: list[Piece] = [self._heads(group, schema), bytes([2 * OPS.index(op.value)]), self._sent_at]
        columns: list[Column] = []
        # An update without old row tells the key by the new one, as Creek does.
        old = group.after if group.tag == "U" and group.before is None else group.before
        for part, rows in ((record.key, old), (record, group.after)):
            encoded = [] if rows is None else _columns(group.relation, part, rows, self._types, widened=widened)
            pieces += [_NULL if rows is None else _RECORD, *(piece for column in encoded for piece in column.pieces)]
            columns += encoded
        return join(pieces, len(group)), _misfits(columns, len(group))

    def _heads(self, group: Group, schema: AvroSchema) -> pa.Array:
        """What stands before the operation: it is the same for all changes of a transaction."""
        places, relation = group.places, group.relation
        edges = np.flatnonzero(np.diff(places.commit_lsn, prepend=-1))
        first = places.at(edges)
        lead = MAGIC + schema.fingerprint + text_of(schema.name) + text_of(_SOURCE_NAME)
        table = text_of(self._database) + text_of(relation.schema) + text_of(relation.name)
        pieces: list[Piece] = [lead, longs(first.committed_at), table, longs(first.xid)]
        if self._generation is Generation.ONE:
            pieces.append(_lsn_texts(self._transactions.before(first.commit_lsn)))
        heads = join([*pieces, _lsn_texts(first.commit_lsn)], len(edges))
        sizes = np.diff(np.concatenate((edges, [len(group)])))
        return heads if len(edges) == len(group) else heads.take(pa.array(np.repeat(np.arange(len(edges)), sizes)))


def _op(group: Group) -> Op:
    """What Creek calls it: every update that comes with an old row is one of the key."""
    if group.tag == "U":
        return Op.UPDATE if group.old_kind is None else Op.UPDATE_KEY
    return {"I": Op.INSERT, "D": Op.DELETE, "T": Op.TRUNCATE, _READ: Op.READ}[group.tag]


def _lsn_texts(lsns: Ints) -> pa.BinaryArray:
    """Positions as strings of Avro's: two numbers in hex without leading zeros, and a slash."""
    raw = lsns.astype(">i8").view(np.uint8).reshape(-1, 8)
    nibbles = np.stack((raw >> 4, raw & 0xF), axis=2).reshape(-1, 16)
    digits = np.logical_or.accumulate(nibbles.reshape(-1, 2, 8) != 0, axis=2)
    digits[:, :, -1] = True
    matrix, shown = np.empty((len(lsns), 18), np.uint8), np.ones((len(lsns), 18), np.bool_)
    matrix[:, 0], matrix[:, 9] = 2 * (digits.sum(axis=(1, 2)) + 1), ord("/")
    matrix[:, 1:9], matrix[:, 10:] = _HEX[nibbles[:, :8]], _HEX[nibbles[:, 8:]]
    shown[:, 1:9], shown[:, 10:] = digits[:, 0], digits[:, 1]
    return packed(matrix, shown)


def _columns(relation: Relation, record: RowRecord, rows: pa.RecordBatch, types: Types, *, widened: bool) -> list[Column]:
    found = []
    for field in record.fields:
        try:
            found.append(encode_column(rows[field.column], field, types, widened=widened))
        except DecodeError as error:
            raise misfit(error, relation, field.column) from error
    return found


def _misfits(columns: Sequence[Column], count: int) -> Mask:
    found = np.zeros(count, np.bool_)
    for column in columns:
        if column.misfit is not None:
            found |= column.misfit
    return found


def _sure_misfits(record: RowRecord, group: Group) -> Mask:
    """Changes that need the widened schema at first sight, so that nobody encodes them in vain under the other one."""
    found = np.zeros(len(group), np.bool_)
    unbounded = [field.column for field in record.fields if field.type.form is Form.NUMERIC and not field.type.is_array]
    for rows in filter(None, (group.before, group.after)):
        for name in set(unbounded).intersection(rows.schema.names):
            found |= pc.is_valid(rows[name]).to_numpy(zero_copy_only=False)
    return found


def _rows_of(group: Group, rows: Ints) -> Group:
    """Some of a group's changes; what is asked of it is where they stand, and their rows."""
    index = pa.array(rows)
    before, after = (each if each is None else each.take(index) for each in (group.before, group.after))
    return replace(group, places=group.places.at(rows), before=before, after=after, messages=group.messages[rows])


def _interleaved(plain: pa.Array, wide: pa.Array, is_wide: Mask) -> pa.Array:
    """The elements of two arrays in one, in their order: the next of the second where it is marked, else of the first."""
    type_ = max(plain.type, wide.type, key=pa.types.is_large_binary)
    index = np.empty(len(is_wide), np.int64)
    index[~is_wide], index[is_wide] = np.arange(len(plain)), np.arange(len(wide)) + len(plain)
    return pa.concat_arrays([plain.cast(type_), wide.cast(type_)]).take(pa.array(index))


def _unchanged(group: Group) -> pa.StringArray:
    """The names of the columns of each new row that the server left out, in their order."""
    if not group.unchanged:
        return pa.nulls(len(group), pa.string())
    # Arrow's own way of joining without NULLs leaves out rows that have nothing else.
    names = [pc.if_else(pa.array(mask), quote(name, safe="") + ",", "") for name, mask in group.unchanged.items()]
    lists = pc.utf8_rtrim(pc.binary_join_element_wise(*names, ""), ",")
    return pc.if_else(pc.equal(lists, ""), None, lists)


def _taken(parts: Sequence[_Part], relation: Relation, rows: Ints) -> _Part:
    """Rows of several parts as one, in the given order."""
    index = pa.array(rows)
    type_ = max((part.payloads.type for part in parts), key=pa.types.is_large_binary)
    fields = ((part.places.commit_lsn, part.places.ordinal, part.places.xid, part.places.committed_at) for part in parts)
    places = Places(*(np.concatenate(vectors)[rows] for vectors in zip(*fields, strict=True)))
    return _Part(
        relation,
        np.concatenate([part.messages for part in parts])[rows],
        places,
        pa.concat_arrays([part.ops for part in parts]).take(index),
        pa.concat_arrays([part.payloads.cast(type_) for part in parts]).take(index),
        pa.concat_arrays([part.unchanged for part in parts]).take(index),
        np.concatenate([part.is_widened for part in parts])[rows],
    )
