"""Whole columns of the server's text to Arrow, where Arrow has no cast of its own, by numpy over the text's bytes.

Like Arrow's casts, these keep NULL and raise `ArrowInvalid` for text that they do not know.
"""

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# A number n of up to 15 digits over a power of ten, read as a float and multiplied by that power, is off by less than
# n * 2**-52 < 0.25, so that rounding gives n again.
_FLOAT_DIGITS = 15

# Two hex digits make an entry of the table, and no byte has this value.
_NOT_HEX = 0x100


def bytes_of(texts: pa.StringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each text begins and, as one more, where the last one ends; and the bytes themselves."""
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or data is None:
        return np.zeros(len(texts) + 1, np.int64), np.zeros(0, np.uint8)
    places = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    return places.astype(np.int64), np.frombuffer(data, np.uint8)


def byte_at(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The bytes at these places; a place beyond its text gives a byte of a neighbour, never an error."""
    return data.take(places, mode="clip") if len(data) else np.zeros(len(places), np.uint8)


def validity(texts: pa.StringArray) -> npt.NDArray[np.bool_]:
    """True where there is a value."""
    return np.asarray(pc.is_valid(texts).to_numpy(zero_copy_only=False))


def bools(texts: pa.StringArray) -> pa.Array:
    """From `t` and `f`; Arrow knows other words."""
    is_true = pc.equal(texts, "t")
    if pc.all(pc.or_(is_true, pc.equal(texts, "f"))).as_py() is False:
        raise pa.ArrowInvalid("neither t nor f")
    return is_true


def oids(texts: pa.StringArray) -> pa.Array:
    """Numbers of 32 bits without sign, in 64 with one."""
    return pc.cast(pc.cast(texts, pa.uint32()), pa.int64())


def times(texts: pa.StringArray) -> pa.Array:
    """Times of day, read as moments of the first day."""
    return pc.cast(pc.binary_join_element_wise("1970-01-01", texts, " "), pa.timestamp("us")).view(pa.time64("us"))


def decimals(texts: pa.StringArray, precision: int, scale: int) -> pa.Array:
    """Numbers with exactly `scale` digits behind the point; if they have few digits, by way of floats, which is faster."""
    type_ = pa.decimal128(precision, scale)
    if precision > _FLOAT_DIGITS or scale == 0 or len(texts) == 0:
        return pc.cast(texts, type_)
    units = _units(texts, scale)
    # Checked before it is an integer, for an infinite float cannot become one.
    if np.abs(units).max() >= 10**precision:
        raise pa.ArrowInvalid(f"more than {precision} digits")
    words = np.empty((len(units), 2), "<i8")
    words[:, 0] = units
    np.right_shift(words[:, 0], 63, out=words[:, 1])
    return pa.Array.from_buffers(type_, len(texts), [_bitmap(texts), pa.py_buffer(words)])


def _units(texts: pa.StringArray, scale: int) -> npt.NDArray[np.float64]:
    """The numbers times 10**scale, whole."""
    starts, data = bytes_of(texts)
    has_point = byte_at(data, starts[1:] - scale - 1) == ord(".")
    if not np.all(has_point if texts.null_count == 0 else has_point | ~validity(texts)):
        raise pa.ArrowInvalid(f"not {scale} digits behind the point")
    floats = pc.cast(texts, pa.float64())
    numbers: npt.NDArray[np.float64] = (floats.fill_null(0) if texts.null_count else floats).to_numpy()
    return np.rint(numbers * 10.0**scale)


def binaries(texts: pa.StringArray) -> pa.Array:
    """Byte strings from hex, two digits at a time through a table."""
    # A NULL may lie over bytes of any length; filled, it lies over none.
    starts, data = bytes_of(pc.fill_null(texts, ""))
    valid = validity(texts)
    places = starts - starts[0]
    if np.any(places & 1):
        raise pa.ArrowInvalid("an odd number of hex digits")
    places //= 2
    pairs = np.frombuffer(data[starts[0] : starts[-1]].tobytes(), "<u2")
    prefixes = places[:-1][valid]
    if np.any(prefixes == places[1:][valid]) or np.any(pairs[prefixes] != int.from_bytes(b"\\x", "little")):
        raise pa.ArrowInvalid("no \\x before the hex digits")
    content = np.delete(_hex_table()[pairs], prefixes)
    if np.any(content == _NOT_HEX):
        raise pa.ArrowInvalid("not a hex digit")
    places[1:] -= np.cumsum(valid)
    buffers = [_bitmap(texts), pa.py_buffer(places.astype(np.int32)), pa.py_buffer(content.astype(np.uint8))]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


def _bitmap(texts: pa.StringArray) -> pa.Buffer | None:
    """The validity of the texts as a buffer that begins at the first of them."""
    return None if texts.null_count == 0 else pc.is_valid(texts).buffers()[1]


@cache
def _hex_table() -> npt.NDArray[np.uint16]:
    """The byte that two characters stand for, by those characters as a little-endian number."""
    digits = np.full(256, _NOT_HEX, np.uint16)
    for value, digit in enumerate(b"0123456789abcdef"):
        digits[digit] = value
    high, low = digits[None, :], digits[:, None]
    return np.where((high == _NOT_HEX) | (low == _NOT_HEX), _NOT_HEX, high * 16 + low).ravel().astype(np.uint16)
