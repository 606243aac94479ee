"""Vectors of Avro's primitives as Arrow arrays of bytes, made by numpy; and the rows that are joined from such pieces.

Manual: "Binary Encoding" of the Avro specification. Numbers are zigzag varints: seven bits a byte, the lowest first.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]
# What a row is joined from: an array with as many elements as there are rows, where NULL stands for nothing, or a constant.
Piece: TypeAlias = pa.Array | bytes
# The byte before a value that says which branch of a union it is of: one for all, one for each, or none.
Head: TypeAlias = int | Bytes | None

# A varint has one more byte for each of these that a number reaches.
_STEPS: Final = np.array([1 << 7 * bytes_ for bytes_ in range(1, 10)], np.uint64)
# Where the offsets of an Arrow array of 32 bits end.
_MOST_BYTES: Final = 2**31 - 1


def long(value: int) -> bytes:
    """One number."""
    rest, found = (value << 1) ^ (value >> 63), bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def text_of(value: str | bytes) -> bytes:
    """One string."""
    raw = value.encode() if isinstance(value, str) else value
    return long(len(raw)) + raw


def longs(values: Ints, head: Head = None, present: Mask | None = None) -> pa.BinaryArray:
    """Numbers; where one is not `present`, there is the head alone."""
    lead = 0 if head is None else 1
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    least, most = (_width(int(end(zigzag))) for end in (np.min, np.max)) if len(values) else (1, 1)
    matrix = np.empty((len(values), lead + most), np.uint8)
    if head is not None:
        matrix[:, 0] = head
    for step in range(most):
        matrix[:, lead + step] = (zigzag >> np.uint64(7 * step)).astype(np.uint8) | 0x80
    if least == most:
        matrix[:, -1] &= 0x7F
        return packed(matrix, _shown(lead, most, present))
    widths = np.searchsorted(_STEPS, zigzag, side="right") + (1 + lead)
    matrix[np.arange(len(values)), widths - 1] &= 0x7F
    if present is not None:
        widths[~present] = lead
    return packed(matrix, np.arange(lead + most) < widths[:, None])


def _width(zigzag: int) -> int:
    return max(1, -(-zigzag.bit_length() // 7))


def fixed(values: Bytes, head: Head = None, present: Mask | None = None) -> pa.BinaryArray:
    """Rows of equally many bytes, in order; where one is not `present`, there is the head alone."""
    if head is None:
        return packed(values, _shown(0, values.shape[1], present))
    matrix = np.empty((len(values), 1 + values.shape[1]), np.uint8)
    matrix[:, 0], matrix[:, 1:] = head, values
    return packed(matrix, _shown(1, values.shape[1], present))


def _shown(lead: int, width: int, present: Mask | None) -> Mask | None:
    """Which bytes of a matrix are meant: all, or where there is no value those of the head."""
    if present is None:
        return None
    shown = np.ones((len(present), lead + width), np.bool_)
    shown[~present, lead:] = False
    return shown


def packed(matrix: Bytes, shown: Mask | None = None) -> pa.BinaryArray:
    """The bytes of each row, those that are shown, as an element."""
    count, width = matrix.shape
    offsets = np.zeros(count + 1, np.int64)
    if shown is None:
        data = np.ascontiguousarray(matrix)
        offsets[:] = np.arange(count + 1) * width
    else:
        data = matrix[shown]
        np.cumsum(shown.sum(axis=1), out=offsets[1:])
    return with_offsets(offsets, pa.py_buffer(data))


def with_offsets(offsets: Ints, data: pa.Buffer) -> pa.Array:
    """An array over bytes that are there already."""
    is_large = int(offsets[-1]) > _MOST_BYTES
    type_ = pa.large_binary() if is_large else pa.binary()
    places = offsets if is_large else offsets.astype(np.int32)
    return pa.Array.from_buffers(type_, len(offsets) - 1, [None, pa.py_buffer(places), data])


def offsets_of(array: pa.Array) -> Ints:
    """Where the bytes of each element begin and, as one more, where the last one's end."""
    form, size = (np.int64, 8) if pa.types.is_large_binary(array.type) else (np.int32, 4)
    if not len(array):
        return np.zeros(1, np.int64)
    return np.frombuffer(array.buffers()[1], form, len(array) + 1, array.offset * size).astype(np.int64)


def merged(array: pa.Array, bounds: Ints) -> pa.Array:
    """Elements `bounds[i]` up to `bounds[i + 1]` of an array without NULL, end to end, as its element i."""
    return with_offsets(offsets_of(array)[bounds], array.buffers()[2] or pa.py_buffer(b""))


def strings(values: pa.Array, head: Head = None, present: Mask | None = None) -> list[Piece]:
    """Strings or bytes: lengths, and what they are the lengths of."""
    sizes = pc.binary_length(values)
    counts = (sizes.fill_null(0) if sizes.null_count else sizes).to_numpy(zero_copy_only=False).astype(np.int64)
    return [longs(counts, head, present), _binary(values)]


def join(pieces: Sequence[Piece], count: int) -> pa.Array:
    """So many rows, each of its elements of the pieces end to end."""
    merged_pieces = _merged_constants(pieces)
    total = sum(len(piece) * count if isinstance(piece, bytes) else piece.nbytes for piece in merged_pieces)
    type_ = pa.large_binary() if total > _MOST_BYTES else pa.binary()
    parts = [
        pa.scalar(piece, type_) if isinstance(piece, bytes) else piece.cast(type_) if piece.type != type_ else piece
        for piece in merged_pieces
    ]
    if not any(isinstance(part, pa.Array) for part in parts):
        return pa.repeat(pa.scalar(b"".join(pieces), type_), count)
    nothing = pa.scalar(b"", type_)
    return pc.binary_join_element_wise(*parts, nothing, null_handling="replace", null_replacement="")


def _merged_constants(pieces: Sequence[Piece]) -> list[Piece]:
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += piece
        elif not isinstance(piece, bytes) or piece:
            found.append(piece)
    return found


def _binary(values: pa.Array) -> pa.Array:
    """Texts as the bytes that they are, which takes no time."""
    if pa.types.is_string(values.type):
        return values.cast(pa.binary())
    return values.cast(pa.large_binary()) if pa.types.is_large_string(values.type) else values
