"""A batch decoded by columns, for volume: numpy over the raw buffer into Arrow, split by relation and operation. Pure.

The messages of one relation and operation are walked in step, column by column, as vectors of positions. A column's texts
are then cut out of the buffer in one go and cast to the column's Arrow type. The row form in `rows` gives the same values.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import DecodeError
from headwater.postgres.replication.batch import Batch, Bytes, changes_per_message, misfit, placed, tags_of
from headwater.postgres.replication.messages import Relation, Truncate
from headwater.postgres.replication.pgoutput import LATEST_MICROS, decode, parse_relation, text_of
from headwater.postgres.replication.protocol import POSTGRES_EPOCH
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Rejected, Types, from_text

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
# Makes of a column's texts, by the type of the column, the array that is wanted and the places that it has no value for.
ConvertColumn: TypeAlias = Callable[[pa.StringArray, Types, int, int], tuple[pa.Array, Rejected]]

_NULL, _UNCHANGED, _TEXT = b"nut"
_BEGIN_BYTES, _COMMIT_BYTES = 21, 26
# The tags by what is to be done with them here: those of the messages that carry no rows are rare, so `decode` checks them.
_OUT_OF_PLACE, _VECTORISED, _RARE = range(3)
_SORTS = np.full(256, _OUT_OF_PLACE, np.uint8)
_SORTS[list(b"BCIUDTR")], _SORTS[list(b"OYM")] = _VECTORISED, _RARE
# 2000-01-01, PostgreSQL's epoch, in microseconds of Unix time.
_EPOCH_MICROS = 946_684_800_000_000


@dataclass(frozen=True, slots=True)
class RejectedValue:
    """A value that its column's Arrow type cannot hold: the array has NULL there, so the row must not go on as it is."""

    row: int
    column: str
    text: str
    is_old: bool  # whether it stands in `before`


@dataclass(frozen=True, slots=True)
class Places:
    """Where each row of a group stands: vectors of equal length, in the order of the stream."""

    commit_lsn: Ints
    ordinal: Ints
    xid: Ints
    committed_at: Ints  # microseconds of Unix time

    def at(self, index: Ints) -> "Places":
        return Places(self.commit_lsn[index], self.ordinal[index], self.xid[index], self.committed_at[index])


@dataclass(frozen=True, slots=True)
class Group:
    """The changes of one kind to one table as it was at that time.

    `tag` is I, U, D or T as in the protocol. `before` holds what was sent of the old rows: `old_kind` K is the columns of
    the replica identity, O all columns. `key_changed` marks the updates of K whose key differs; the server also sends an old
    key that stayed, when it is stored out of line (TOAST). Under O the stream does not tell the key, and none is marked.
    `unchanged` marks the values of `after` that the server sent neither there nor in the old row; they are NULL there. A
    truncate has neither rows. `messages` is the number of each change's message in the batch.
    """

    relation: Relation
    tag: str
    old_kind: str | None
    places: Places
    before: pa.RecordBatch | None
    after: pa.RecordBatch | None
    unchanged: Mapping[str, Mask]
    key_changed: Mask
    rejected: Sequence[RejectedValue]
    messages: Ints

    def __len__(self) -> int:
        return len(self.places.ordinal)


def as_sent(texts: pa.StringArray, _types: Types, _oid: int, _typmod: int) -> tuple[pa.Array, Rejected]:
    """The server's own text, for whoever hands it on to a server."""
    return texts, ()


def decode_columns(batch: Batch, types: Types, convert: ConvertColumn = from_text) -> list[Group]:
    """The batch's row changes in groups, with columns as `convert` makes them; a group is in the order of the stream."""
    if not len(batch):
        return []
    try:
        walk = _Walk(batch, types, convert)
        return [*walk.row_groups(), *walk.truncates()]
    except DecodeError as error:
        # Vectors do not tell which message it was. The row decoder refuses the same one, and names its place.
        deque(decode_rows(batch, types), maxlen=0)
        raise placed(error, None) from error


@dataclass(frozen=True, slots=True)
class _Texts:
    """One column of one group, still as places in the buffer."""

    state: Bytes
    start: Ints
    length: Ints


class _Walk:
    """One batch being decoded."""

    def __init__(self, batch: Batch, types: Types, convert: ConvertColumn) -> None:
        self._batch, self._types, self._convert = batch, types, convert
        self._raw = np.frombuffer(batch.data, np.uint8)
        self._buffer = pa.py_buffer(batch.data)
        self._tags = tags_of(batch.data, batch.bounds)
        self._starts, self._ends = batch.bounds[:-1], batch.bounds[1:]
        self._xid_bytes = batch.xid_bytes
        self._check_rare()
        self._described = self._relations()
        self._places = self._positions()

    def row_groups(self) -> Iterator[Group]:
        """The groups of inserts, updates and deletes."""
        rows = np.flatnonzero((self._tags == ord("I")) | (self._tags == ord("U")) | (self._tags == ord("D")))
        if not len(rows):
            return
        self._check_length(rows, 1 + self._xid_bytes + 7)
        body = self._starts[rows] + 1 + self._xid_bytes
        oids, tags, kinds = self._uint32(body), self._tags[rows], self._raw[body + 4]
        for value, members in _split(oids << 16 | tags.astype(np.int64) << 8 | kinds):
            oid, tag, kind = value >> 16, chr(value >> 8 & 255), chr(value & 255)
            for relation, index in self._by_version(oid, rows[members]):
                yield self._group(relation, tag, kind, index)

    def truncates(self) -> Iterator[Group]:
        """A group for each table of each truncate."""
        for index in np.flatnonzero(self._tags == ord("T")):
            message = decode(self._batch.message(int(index)), streamed=self._batch.streamed)
            if not isinstance(message, Truncate):
                raise DecodeError("a truncate was expected", message_type="T")
            for step, oid in enumerate(message.relation_oids):
                (relation, at), *_ = self._by_version(oid, np.array([index]))
                place, none = self._places.at(at), np.zeros(1, np.bool_)
                place = replace(place, ordinal=place.ordinal + step)
                yield Group(relation, "T", None, place, None, None, {}, none, (), at)

    def _positions(self) -> Places:
        """The place of every message, as if each were a change."""
        batch, first = self._batch, self._batch.begin
        is_begin, is_commit = self._tags == ord("B"), self._tags == ord("C")
        begins, commits = np.flatnonzero(is_begin), np.flatnonzero(is_commit)
        self._check_control(begins, _BEGIN_BYTES, (1,), 9)
        self._check_control(commits, _COMMIT_BYTES, (2, 10), 18)
        steps = changes_per_message(batch.data, batch.bounds, self._tags, self._xid_bytes)
        is_edge = is_begin | is_commit
        is_open = np.concatenate(([first is not None], is_begin[is_edge]))
        if not (is_open[np.cumsum(is_edge)] | (steps == 0)).all():
            raise DecodeError("changes come before the Begin of their transaction")
        transaction, at = np.cumsum(is_begin), self._starts[begins] + 1
        lead = (int(first.commit_lsn), _micros(first.committed_at), first.xid) if first else (0, 0, 0)
        commit_lsn = np.concatenate(([lead[0]], self._int64(at)))
        committed_at = np.concatenate(([lead[1]], self._int64(at + 8) + _EPOCH_MICROS))
        xid = np.concatenate(([lead[2]], self._uint32(at + 16)))
        counted = np.cumsum(steps) - steps
        base = np.concatenate(([-batch.first_ordinal], counted[begins]))
        ordinal = counted - base[transaction] if batch.ordinals is None else batch.ordinals
        return Places(commit_lsn[transaction], ordinal, xid[transaction], committed_at[transaction])

    def _check_control(self, index: Ints, size: int, lsns: tuple[int, ...], time: int) -> None:
        """Begin and Commit are of fixed length, and have positions and a time at these places."""
        self._check_length(index, size, exact=True)
        at = self._starts[index]
        micros = self._int64(at + time)
        if any((self._int64(at + lsn) < 0).any() for lsn in lsns) or ((micros < 0) | (micros > LATEST_MICROS)).any():
            raise DecodeError("it has no possible position or time", message_type=chr(self._tags[index[0]]))

    def _check_rare(self) -> None:
        """Decode what carries no rows, and refuse what has no place here."""
        sort = _SORTS[self._tags]
        if (sort == _OUT_OF_PLACE).any():
            raise DecodeError("it has no place in a batch")
        for index in np.flatnonzero(sort == _RARE).tolist():
            decode(self._batch.message(index), streamed=self._batch.streamed)

    def _relations(self) -> dict[int, list[tuple[int, Relation]]]:
        """The relations that the batch describes by oid, each with the message that does."""
        found: dict[int, list[tuple[int, Relation]]] = {}
        for index in np.flatnonzero(self._tags == ord("R")).tolist():
            relation = parse_relation(b"R" + bytes(self._batch.message(index)[1 + self._xid_bytes :]))
            found.setdefault(relation.oid, []).append((index, relation))
        return found

    def _by_version(self, oid: int, index: Ints) -> Iterator[tuple[Relation, Ints]]:
        """The messages of one table, split where a new Relation message changed how it looks."""
        described = self._described.get(oid, [])
        edges = np.searchsorted(index, np.array([at for at, _ in described], np.int64))
        before, *parts = np.split(index, edges)
        if len(before):
            yield self._known_before(oid), before
        for (_, relation), part in zip(described, parts, strict=True):
            if len(part):
                yield relation, part

    def _known_before(self, oid: int) -> Relation:
        if oid not in self._batch.relations:
            raise DecodeError(f"relation {oid} was never described")
        return parse_relation(self._batch.relations[oid])

    def _group(self, relation: Relation, tag: str, kind: str, index: Ints) -> Group:
        at, ends = self._starts[index] + 1 + self._xid_bytes + 4, self._ends[index]
        old_kind = kind if kind in "KO" else None
        if kind not in {"I": "N", "U": "KON", "D": "KO"}[tag]:
            raise DecodeError(f"{kind!r} is not a kind of row", message_type=tag)
        old = new = None
        if old_kind:
            old, at = self._row(relation, at + 1, ends, tag)
            if any((column.state == _UNCHANGED).any() for column in old):
                raise DecodeError("a column of an old row is marked as unchanged", message_type=tag)
        if tag != "D":
            self._expect_new(at, ends, tag)
            new, at = self._row(relation, at + 1, ends, tag)
        if (at != ends).any():
            raise DecodeError("bytes are left over at its end", message_type=tag)
        rejected: list[RejectedValue] = []
        before = None if old is None else self._record_batch(relation, old, rejected, old_kind)
        key_changed = np.zeros(len(index), np.bool_)
        if new is not None and old is not None:
            new = _filled(relation, new, old, old_kind)
            if old_kind == "K":
                key_changed = self._key_changed(relation, new, old)
        after = None if new is None else self._record_batch(relation, new, rejected)
        unchanged = {} if new is None else _unchanged(relation, new)
        places = self._places.at(index)
        return Group(relation, tag, old_kind, places, before, after, unchanged, key_changed, tuple(rejected), index)

    def _key_changed(self, relation: Relation, new: list[_Texts], old: list[_Texts]) -> Mask:
        changed = np.zeros(len(new[0].start) if new else 0, np.bool_)
        for column, texts, previous in zip(relation.columns, new, old, strict=True):
            if column.key:
                # Two NULLs compare as NULL: no change. One beside a text shows in the states.
                differs = pc.fill_null(pc.not_equal(self._cut(texts), self._cut(previous)), False)
                changed |= differs.to_numpy(zero_copy_only=False) | (texts.state != previous.state)
        return changed

    def _row(self, relation: Relation, at: Ints, ends: Ints, tag: str) -> tuple[list[_Texts], Ints]:
        """The columns of a row that begins at `at` in each message, and where the row ends."""
        _within(at + 2, ends, tag)
        counts = self._raw[at].astype(np.int64) << 8 | self._raw[at + 1]
        if (counts != len(relation.columns)).any():
            raise DecodeError(f"a row does not have the {len(relation.columns)} columns of its table", message_type=tag)
        at = at + 2
        columns = []
        for _ in relation.columns:
            column, at = self._column(at, ends, tag)
            columns.append(column)
        return columns, at

    def _column(self, at: Ints, ends: Ints, tag: str) -> tuple[_Texts, Ints]:
        _within(at + 1, ends, tag)
        state = self._raw[at]
        sent = state == _TEXT
        if sent.all():
            _within(at + 5, ends, tag)
            start, length = at + 5, self._uint32(at + 1)
        else:
            if not (sent | (state == _NULL) | (state == _UNCHANGED)).all():
                raise DecodeError("a column is neither text nor NULL nor unchanged", message_type=tag)
            _within((at + 5)[sent], ends[sent], tag)
            start, length = at + 1, np.zeros(len(at), np.int64)
            start[sent] += 4
            length[sent] = self._uint32(at[sent] + 1)
        end = start + length
        _within(end, ends, tag)
        return _Texts(state, start, length), end

    def _record_batch(
        self, relation: Relation, row: list[_Texts], rejected: list[RejectedValue], old_kind: str | None = None
    ) -> pa.RecordBatch:
        """The columns of old rows, of which K has only those of the identity, or without `old_kind` of new ones."""
        names, arrays = [], []
        for column, texts in zip(relation.columns, row, strict=True):
            if column.key or old_kind != "K":
                cut = self._cut(texts)
                try:
                    array, failed = self._convert(cut, self._types, column.type_oid, column.typmod)
                except DecodeError as error:
                    raise misfit(error, relation, column.name) from error
                rejected += [RejectedValue(i, column.name, cut[i].as_py(), old_kind is not None) for i in failed]
                names.append(column.name)
                arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, names)

    def _cut(self, texts: _Texts) -> pa.Array:
        """The texts out of the buffer, as one array.

        The buffer itself serves as the data of an array that holds, in turn, a text and the gap behind it; taking every
        other element lets Arrow copy the texts together. It works because later rows stand later in the buffer.
        """
        count = len(texts.start)
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[:-1:2], offsets[1::2] = texts.start, texts.start + texts.length
        offsets[-1] = offsets[-2]
        alternating = pa.Array.from_buffers(pa.string(), 2 * count, [None, pa.py_buffer(offsets), self._buffer])
        missing = texts.state != _TEXT
        cut = alternating.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=missing if missing.any() else None))
        try:
            cut.validate(full=True)
        except pa.ArrowInvalid:
            raw = cut.view(pa.binary()).to_pylist()
            return pa.array([None if value is None else text_of(value) for value in raw], pa.string())
        return cut

    def _expect_new(self, at: Ints, ends: Ints, tag: str) -> None:
        _within(at + 1, ends, tag)
        if (self._raw[at] != ord("N")).any():
            raise DecodeError("no new row where one must be", message_type=tag)

    def _check_length(self, index: Ints, least: int, *, exact: bool = False) -> None:
        lengths = self._ends[index] - self._starts[index]
        if ((lengths != least) if exact else (lengths < least)).any():
            raise DecodeError(f"a message is not {least} bytes long", message_type=chr(self._tags[index[0]]))

    def _uint32(self, at: Ints) -> Ints:
        return self._gather(">u4", 4, at)

    def _int64(self, at: Ints) -> Ints:
        return self._gather(">i8", 8, at)

    def _gather(self, form: str, size: int, at: Ints) -> Ints:
        """The big-endian integers that begin at `at`, through a view of the buffer in which one begins at every byte."""
        shape = (max(0, len(self._raw) - size + 1),)
        view: npt.NDArray[np.int64] = np.ndarray(shape, form, self._batch.data, strides=(1,))
        return view[at].astype(np.int64)


def _split(codes: Ints) -> Iterator[tuple[int, Ints]]:
    """The distinct codes, each with the places where it stands, in order."""
    encoded = pa.array(codes).dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if len(values) == 1:
        yield values[0], np.arange(len(codes))
        return
    # A stable sort of small integers is a radix sort in numpy, linear in their number.
    indices = encoded.indices.to_numpy().astype(np.uint16 if len(values) <= 65_536 else np.uint32)
    order = np.argsort(indices, kind="stable")
    edges = np.cumsum(np.bincount(indices))[:-1]
    yield from zip(values, np.split(order, edges), strict=True)


def _within(at: Ints, ends: Ints, tag: str) -> None:
    if (at > ends).any():
        raise DecodeError("it ends in mid field", message_type=tag)


def _filled(relation: Relation, new: list[_Texts], old: list[_Texts], old_kind: str | None) -> list[_Texts]:
    """The new row with what the server did not send taken from the old row, as far as that has it."""
    return [
        _filled_column(texts, previous) if column.key or old_kind == "O" else texts
        for column, texts, previous in zip(relation.columns, new, old, strict=True)
    ]


def _filled_column(column: _Texts, previous: _Texts) -> _Texts:
    missing = column.state == _UNCHANGED
    if not missing.any():
        return column
    return _Texts(
        np.where(missing, previous.state, column.state),
        np.where(missing, previous.start, column.start),
        np.where(missing, previous.length, column.length),
    )


def _unchanged(relation: Relation, row: list[_Texts]) -> dict[str, Mask]:
    masks = ((column.name, texts.state == _UNCHANGED) for column, texts in zip(relation.columns, row, strict=True))
    return {name: mask for name, mask in masks if mask.any()}


def _micros(moment: datetime) -> int:
    return (moment - POSTGRES_EPOCH) // timedelta(microseconds=1) + _EPOCH_MICROS
