"""Columns of texts to messages as the server's pgoutput writes them. Pure.

Whoever takes the server's own messages can so take those of Creek: they are decoded by columns again, which costs little,
and all that is known of them, such as which columns were left alone, stands in them.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.postgres.replication.messages import Relation

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Columns: TypeAlias = Sequence[pa.Array]

_TEXT, _NULL, _UNCHANGED = b"tnu"
# Behind the tag of a value stands its length, in four bytes.
_HEAD_BYTES = 5
_BEGIN = np.dtype([("tag", "S1"), ("lsn", ">u8"), ("at", ">i8"), ("xid", ">u4")])
BEGIN_BYTES = _BEGIN.itemsize


def inserts(relation: Relation, new: Columns) -> pa.Array:
    return _joined([_head(b"I", relation, b"N")], new, {})


def updates(relation: Relation, new: Columns, unchanged: Mapping[int, Mask]) -> pa.Array:
    """Rows whose key stayed; `unchanged` marks, by column, the values that are not told."""
    return _joined([_head(b"U", relation, b"N")], new, unchanged)


def moves(relation: Relation, old: Columns, new: Columns, unchanged: Mapping[int, Mask]) -> pa.Array:
    """Updates that tell the old key, or the whole old row."""
    before = _joined([_head(b"U", relation, _old_kind(relation))], _padded(old, relation), {})
    return _joined([before, b"N" + _count(relation)], new, unchanged)


def deletes(relation: Relation, old: Columns) -> pa.Array:
    return _joined([_head(b"D", relation, _old_kind(relation))], _padded(old, relation), {})


def truncate(relation: Relation) -> bytes:
    return b"T" + struct.pack("!IBI", 1, 0, relation.oid)


def begins(positions: Ints, micros: Ints, xids: Ints) -> pa.Array:
    """The message by which a transaction begins, for each of some; times in microseconds since 2000."""
    found = np.zeros(len(positions), _BEGIN)
    found["tag"], found["lsn"], found["at"], found["xid"] = b"B", positions, micros, xids
    offsets = np.arange(0, BEGIN_BYTES * (len(positions) + 1), BEGIN_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(positions), [None, pa.py_buffer(offsets), pa.py_buffer(found)])


def _head(tag: bytes, relation: Relation, kind: bytes) -> bytes:
    return tag + struct.pack("!I", relation.oid) + kind + _count(relation)


def _count(relation: Relation) -> bytes:
    return struct.pack("!H", len(relation.columns))


def _old_kind(relation: Relation) -> bytes:
    return b"O" if relation.identity == "f" else b"K"


def _padded(old: Columns, relation: Relation) -> list[pa.Array]:
    """Old rows have the columns of the identity alone; the server writes NULL for the others."""
    mine = iter(old)
    none = pa.nulls(len(old[0]) if old else 0, pa.string())
    return [next(mine) if column.key else none for column in relation.columns]


def _joined(head: Sequence[pa.Array | bytes], columns: Columns, unchanged: Mapping[int, Mask]) -> pa.Array:
    parts: list[pa.Array | pa.Scalar] = [pa.scalar(one, pa.binary()) if isinstance(one, bytes) else one for one in head]
    for number, texts in enumerate(columns):
        column = texts.view(pa.binary())
        parts += [_heads(column, unchanged.get(number)), pc.fill_null(column, b"") if column.null_count else column]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def _heads(column: pa.Array, unchanged: Mask | None) -> pa.Array:
    """What stands in front of each value: its tag, and its length if it has one."""
    count = len(column)
    lengths: Ints = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(">u4")
    if not column.null_count:
        found = np.empty((count, _HEAD_BYTES), np.uint8)
        found[:, 0] = _TEXT
        found[:, 1:] = lengths.view(np.uint8).reshape(count, 4)
        offsets = np.arange(0, _HEAD_BYTES * (count + 1), _HEAD_BYTES, dtype=np.int32)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(found)])
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    sizes = np.where(is_null, 1, _HEAD_BYTES)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    starts = offsets[:-1]
    data[starts] = np.where(is_null, _NULL, _TEXT)
    if unchanged is not None:
        data[starts[is_null & unchanged]] = _UNCHANGED
    sent = starts[~is_null]
    data[sent[:, None] + np.arange(1, _HEAD_BYTES)] = lengths[~is_null].view(np.uint8).reshape(len(sent), 4)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
