"""Frames as columns of Arrow, and columns as frames: copied piece by piece, never message by message. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.topics.append import FRAME_BYTES
from headwater.topics.frame import HAS_HEADERS, HAS_KEYS, PLAIN, Framed, pack, unpack
from headwater.topics.message import partition_of

Integers: TypeAlias = npt.NDArray[np.int64]

_HEADERS: Final = pa.map_(pa.string(), pa.string())
MESSAGES: Final = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("headers", _HEADERS),
        pa.field("created_at", pa.timestamp("us", "UTC")),
    ]
)


def to_messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The messages of rows of a log, in their order, with the columns of `MESSAGES`.

    The rows have the columns `partition`, `last_offset`, `count`, `codec`, `created_at` and `frame`.
    """
    if not rows.num_rows:
        return pa.RecordBatch.from_pylist([], MESSAGES)
    counts = rows["count"].to_numpy().astype(np.int64)
    frame_of = pa.array(np.repeat(np.arange(len(counts)), counts))
    ends = np.cumsum(counts)
    offsets = np.repeat(rows["last_offset"].to_numpy() + 1 - ends, counts) + np.arange(ends[-1])
    keys, payloads, headers = _columns(*_plain(rows), counts)
    return pa.RecordBatch.from_arrays(
        [
            rows["partition"].take(frame_of),
            pa.array(offsets),
            pa.nulls(len(offsets), pa.string()) if keys is None else _texts(keys),
            pa.BinaryArray.from_buffers(pa.binary(), len(offsets), [None, _ends(payloads.lengths), payloads.values]),
            pa.nulls(len(offsets), _HEADERS) if headers is None else _parsed(_texts(headers)),
            rows["created_at"].cast(MESSAGES.field("created_at").type).take(frame_of),
        ],
        schema=MESSAGES,
    )


def to_frames(
    keys: pa.StringArray, payloads: pa.BinaryArray, headers: pa.StringArray, partitions: Integers, *, compresses: bool
) -> Iterator[tuple[int, Framed]]:
    """Messages as frames, each with its partition; those of a partition keep their order.

    `headers` are JSON objects as texts; null for none. `partitions` is where each message goes, as `partitions_of` tells.
    """
    for partition in np.unique(partitions).tolist():
        mine = pa.array(np.flatnonzero(partitions == partition))
        columns = [column.take(mine) for column in (keys, payloads, headers)]
        sizes = sum(np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64) for column in columns)
        # A frame ends with the message that fills it.
        number = (np.cumsum(sizes) - sizes) // FRAME_BYTES
        bounds = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(mine)]
        for start, end in pairwise(bounds):
            own = [column.slice(start, end - start) for column in columns]
            yield partition, pack(end - start, _joined_frame(*own), compresses=compresses)


def partitions_of(keys: pa.StringArray, partitions: int, unkeyed: int) -> Integers:
    """The partition of each message by its key; `unkeyed` for those that have none."""
    known = keys.dictionary_encode()
    found = np.array([*(partition_of(key.encode(), partitions) for key in known.dictionary.to_pylist()), unkeyed], np.int64)
    return found[np.asarray(pc.fill_null(known.indices, len(found) - 1), np.int64)]


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of all messages end to end, and how long each is; -1 for one that is missing."""

    lengths: npt.NDArray[np.int32]
    values: pa.Buffer


def _plain(rows: pa.RecordBatch) -> tuple[memoryview, Integers]:
    """The frames as they were before they were compressed, and where each begins."""
    frames = rows["frame"]
    if pc.all(pc.equal(rows["codec"], PLAIN)).as_py():
        _, starts, data = frames.buffers()
        return memoryview(data), np.frombuffer(starts, np.int32)[frames.offset :][: len(frames)].astype(np.int64)
    packed = zip(rows["codec"].to_pylist(), frames, strict=True)
    unpacked = [unpack(codec, memoryview(frame.as_buffer())) for codec, frame in packed]
    sizes = np.array([len(frame) for frame in unpacked])
    return memoryview(b"".join(unpacked)), np.cumsum(sizes) - sizes


def _columns(data: memoryview, starts: Integers, counts: Integers) -> tuple[_Values | None, _Values, _Values | None]:
    """Keys, payloads and headers; None where no message has any."""
    flags = np.frombuffer(data, np.uint8)[starts]
    at = starts + 1
    lengths: list[npt.NDArray[np.int32] | None] = []
    for has in (flags & HAS_KEYS > 0, np.ones(len(flags), np.bool_), flags & HAS_HEADERS > 0):
        sizes = 4 * counts * has
        lengths.append(_spread(_cut(data, at, sizes), np.repeat(has, counts)) if has.any() else None)
        at = at + sizes
    found: list[_Values | None] = []
    for one in lengths:
        if one is None:
            found.append(None)
            continue
        sizes = np.add.reduceat(one.clip(min=0), np.cumsum(counts) - counts, dtype=np.int64)
        found.append(_Values(one, _cut(data, at, sizes)))
        at = at + sizes
    keys, payloads, headers = found
    assert payloads is not None, "all messages have one"
    return keys, payloads, headers


def _cut(data: memoryview, starts: Integers, sizes: Integers) -> pa.Buffer:
    """Some pieces of the data, end to end."""
    ends = (starts + sizes).tolist()
    return pa.py_buffer(b"".join([data[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]))


def _spread(lengths: pa.Buffer, has: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """The lengths for all messages, though not all frames have them."""
    found = np.full(len(has), -1, np.int32)
    found[has] = np.frombuffer(lengths, "<i4")
    return found


def _ends(lengths: npt.NDArray[np.int32]) -> pa.Buffer:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths.clip(min=0), out=ends[1:])
    return pa.py_buffer(ends)


def _texts(column: _Values) -> pa.StringArray:
    is_there = pa.py_buffer(np.packbits(column.lengths >= 0, bitorder="little"))
    return pa.StringArray.from_buffers(len(column.lengths), _ends(column.lengths), column.values, is_there)


def _parsed(texts: pa.StringArray) -> pa.MapArray:
    """Headers as maps. Most messages have the same as others, or none; each that differs is parsed once."""
    known = texts.dictionary_encode()
    maps = [list(json.loads(text).items()) if text else None for text in known.dictionary.to_pylist()]
    return pa.array(maps, _HEADERS).take(known.indices)


def _joined_frame(keys: pa.StringArray, payloads: pa.BinaryArray, headers: pa.StringArray) -> bytes:
    has_keys, has_headers = keys.null_count < len(keys), headers.null_count < len(headers)
    columns = [*([keys] if has_keys else []), payloads, *([headers] if has_headers else [])]
    lengths = [np.asarray(pc.fill_null(pc.binary_length(one), 0 if one is headers else -1), "<i4") for one in columns]
    parts = [bytes([has_keys * HAS_KEYS | has_headers * HAS_HEADERS]), *(one.tobytes() for one in lengths)]
    return b"".join([*parts, *map(_data, columns)])


def _data(column: pa.Array) -> memoryview:
    """The values end to end; those that Arrow has taken from others leave nothing where one is missing."""
    _, starts, data = column.buffers()
    if data is None:
        return memoryview(b"")
    ends = np.frombuffer(starts, np.int32)
    return memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]]
