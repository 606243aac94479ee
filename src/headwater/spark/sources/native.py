"""Columns that ADBC reads as values, not as text, and what it makes of instants that have no place in 64 bits.

It counts from 1970, PostgreSQL from 2000, so the infinities and what lies near the end of PostgreSQL's range wrap round to
long before its beginning. Everything that PostgreSQL can hold otherwise keeps its value.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.postgres.types import Rejected

# int2, int4, int8, float4, float8, bool, text, varchar, bpchar, date, timestamp, timestamptz.
NATIVE: Final = frozenset({21, 23, 20, 700, 701, 16, 25, 1043, 1042, 1082, 1114, 1184})

# 4714-11-24 BC, where PostgreSQL's dates begin: microseconds and days before 1970.
_LEAST_MICROSECOND, _LEAST_DAY = -210_866_803_200_000_000, -2_440_588
_EPOCH_MICROSECONDS, _EPOCH_DAYS = 946_684_800_000_000, 10_957


def straightened(column: pa.Array) -> tuple[pa.Array, Rejected]:
    """The column with its infinities as the greatest and the least number, and the rows that have no value in 64 bits."""
    if pa.types.is_timestamp(column.type):
        return _straightened(column, pa.int64(), _LEAST_MICROSECOND, _EPOCH_MICROSECONDS)
    if pa.types.is_date32(column.type):
        return _straightened(column, pa.int32(), _LEAST_DAY, _EPOCH_DAYS)
    return column, ()


def _straightened(column: pa.Array, number: pa.DataType, least: int, epoch: int) -> tuple[pa.Array, Rejected]:
    numbers = column.view(number)
    smallest = pc.min(numbers).as_py()
    if smallest is None or smallest >= least:
        return column, ()
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False).copy()
    limits = np.iinfo(values.dtype)
    with np.errstate(over="ignore"):
        wrapped = values - values.dtype.type(epoch)
    strange = values < least
    for limit in (limits.max, limits.min):
        values[strange & (wrapped == limit)] = limit
    rejected = tuple(np.flatnonzero(strange & (wrapped != limits.max) & (wrapped != limits.min)).tolist())
    return pa.array(values, number, mask=column.is_null().to_numpy(zero_copy_only=False)).view(column.type), rejected
