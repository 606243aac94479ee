"""Columns in which a few values have text that no cast knows: infinite dates, BC, years of five digits, 24:00:00, NaN.

The casts get all other values; each distinct one of these is read by itself. It may turn out that the Arrow type cannot hold
it: then it is rejected, NULL in the array, and its index told.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.postgres.types.casts import byte_at, bytes_of, validity

# The indices of rejected values, in ascending order; empty in the normal case.
Rejected: TypeAlias = tuple[int, ...]
Cast: TypeAlias = Callable[[pa.StringArray], pa.Array]
Flags: TypeAlias = npt.NDArray[np.bool_]
Find: TypeAlias = Callable[[pa.StringArray], Flags]
# The value as Arrow stores it; None if it cannot.
ReadOne: TypeAlias = Callable[[str], object]

_TWO, _FOUR, _NINE, _DASH = map(np.uint8, b"249-")


def cast_with_unusual(
    texts: pa.StringArray, *, cast: Cast, find: Find, read: ReadOne, storage: pa.DataType
) -> tuple[pa.Array, Rejected]:
    """The column, cast but for what `find` points at; should the cast fail even so, every value is read by itself."""
    # Looked for first, not after a cast has failed: Arrow spends a microsecond on the message for each value that fails.
    mask = find(texts)
    if texts.null_count:
        mask &= validity(texts)
    try:
        if not mask.any():
            return cast(texts), ()
        usual = cast(pc.if_else(pa.array(mask), None, texts))
    except pa.ArrowInvalid:
        mask = validity(texts)
        usual = cast(pa.nulls(len(texts), pa.string()))
    encoded = texts.filter(pa.array(mask)).dictionary_encode()
    distinct = pa.array([read(text) for text in encoded.dictionary.to_pylist()], storage)
    replacements = distinct.take(encoded.indices)
    array = pc.replace_with_mask(usual.view(storage), pa.array(mask), replacements).view(usual.type)
    rejected = np.flatnonzero(mask)[replacements.is_null().to_numpy(zero_copy_only=False)]
    return array, tuple(rejected.tolist())


def ends_in_letter(texts: pa.StringArray) -> Flags:
    """Whether it is an infinity, BC or NaN."""
    starts, data = bytes_of(texts)
    flags: Flags = byte_at(data, starts[1:] - 1) > _NINE
    return flags


def not_a_plain_year(texts: pa.StringArray) -> Flags:
    """Whether it does not begin with a year of four digits, or is BC."""
    starts, data = bytes_of(texts)
    flags: Flags = byte_at(data, starts[:-1] + 4) != _DASH
    return flags | ends_in_letter(texts)


def at_hour_24(texts: pa.StringArray) -> Flags:
    """Whether it is 24:00:00."""
    starts, data = bytes_of(texts)
    flags: Flags = (byte_at(data, starts[:-1]) == _TWO) & (byte_at(data, starts[:-1] + 1) == _FOUR)
    return flags
