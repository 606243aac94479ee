"""The server's text to Arrow, a column at a time.

bool                          bool_
int2, int4, int8              int16, int32, int64; oid, xid, cid: int64; xid8: decimal128(20, 0)
float4, float8                float32, float64
numeric(p, s), 0 <= s <= p <= 38    decimal128(p, s); NaN is rejected
date                          date32; infinity and -infinity are the greatest and the least int32
timestamp, timestamptz        timestamp("us"), with tz="UTC"; the infinities are the extremes of int64; later than it holds
                              (January 294247) is rejected
time                          time64("us"); 24:00:00 is 86,400,000,000
bytea                         binary
array, vector, composite      string, in the form of `json_form`
all else                      string, the server's text
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import DecodeError
from headwater.postgres.types.casts import binaries, bools, decimals, oids, times
from headwater.postgres.types.instants import (
    INFINITE,
    days_of_date,
    microseconds_of_time,
    microseconds_of_timestamp,
    microseconds_of_timestamptz,
)
from headwater.postgres.types.json_form import Fragment, to_json
from headwater.postgres.types.malformed import malformed
from headwater.postgres.types.registry import Kind, Types
from headwater.postgres.types.scalars import NUMERIC_TEXT
from headwater.postgres.types.unusual import (
    Cast,
    ReadOne,
    Rejected,
    at_hour_24,
    cast_with_unusual,
    ends_in_letter,
    not_a_plain_year,
)

Convert: TypeAlias = Callable[[pa.StringArray], tuple[pa.Array, Rejected]]

_MAX_DECIMAL_DIGITS = 38


@dataclass(frozen=True, slots=True)
class _Column:
    type: pa.DataType
    convert: Convert


def arrow_type(types: Types, oid: int, typmod: int = -1) -> pa.DataType:
    """The Arrow type of a column of this type."""
    return types.compiled(_column, oid, typmod).type


def from_text(texts: pa.StringArray, types: Types, oid: int, typmod: int = -1) -> tuple[pa.Array, Rejected]:
    """The column in its Arrow type, and the indices of values that it cannot hold, which are NULL in it.

    Text that is no value of the type at all raises `DecodeError`.
    """
    column = types.compiled(_column, oid, typmod)
    try:
        return column.convert(texts)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise DecodeError(f"a value of type {_name(types, oid)} is malformed: {error}") from error


def _name(types: Types, oid: int) -> str:
    return types[oid].name if oid in types else str(oid)


def _column(types: Types, oid: int, typmod: int) -> _Column:
    type_, typmod = types.resolve(oid, typmod)
    if type_.is_list or type_.kind is Kind.COMPOSITE:
        return _Column(pa.string(), partial(_fragments, to_json(types, oid)))
    if type_.builtin_name == "numeric":
        return _numeric_column(typmod)
    return _SCALARS.get(type_.builtin_name, _TEXT)


def _fragments(write: Fragment, texts: pa.StringArray) -> tuple[pa.Array, Rejected]:
    return pa.array([None if text is None else write(text) for text in texts.to_pylist()], pa.string()), ()


def _numeric_column(typmod: int) -> _Column:
    # Precision in the upper half, scale as an 11-bit number with sign in the lower, and a header's 4 added to the whole.
    precision, scale = (typmod - 4) >> 16, (((typmod - 4) & 0x7FF) ^ 0x400) - 0x400
    if typmod < 4 or not 0 <= scale <= precision <= _MAX_DECIMAL_DIGITS:
        return _TEXT
    type_ = pa.decimal128(precision, scale)
    cast = partial(decimals, precision=precision, scale=scale)
    read = partial(_read_decimal, precision, scale)
    return _Column(type_, partial(cast_with_unusual, cast=cast, find=ends_in_letter, read=read, storage=type_))


def _read_decimal(precision: int, scale: int, text: str) -> Decimal | None:
    if not NUMERIC_TEXT.fullmatch(text):
        raise malformed("numeric", text)
    # By its digits, for arithmetic on Decimals may round.
    whole, _, fraction = text.removeprefix("-").partition(".")
    if whole in ("NaN", "Infinity") or len(whole.lstrip("0")) > precision - scale or len(fraction.rstrip("0")) > scale:
        return None
    return Decimal(f"{text[: -len(fraction)]}{fraction[:scale]}" if fraction else text)


def _instant_reader(number_of: Callable[[str], int], greatest: int) -> ReadOne:
    """Reads an instant as a number strictly between the extremes of its storage, which stand for the infinities."""

    def read(text: str) -> int | None:
        if text in INFINITE:
            return greatest if INFINITE[text] > 0 else -greatest - 1
        number = number_of(text)
        return number if -greatest - 1 < number < greatest else None

    return read


def _to(type_: pa.DataType) -> Cast:
    return lambda texts: pc.cast(texts, type_)


def _plain(type_: pa.DataType, cast: Cast | None = None) -> _Column:
    """A column whose type holds every value of the server's, all of usual text."""
    convert = cast or _to(type_)
    return _Column(type_, lambda texts: (convert(texts), ()))


def _instants(type_: pa.DataType, storage: pa.DataType, number_of: Callable[[str], int]) -> _Column:
    read = _instant_reader(number_of, 2 ** (storage.bit_width - 1) - 1)
    return _Column(type_, partial(cast_with_unusual, cast=_to(type_), find=not_a_plain_year, read=read, storage=storage))


_TEXT: Final = _plain(pa.string(), lambda texts: texts)

_SCALARS: Final[Mapping[str, _Column]] = MappingProxyType(
    {
        "bool": _plain(pa.bool_(), bools),
        "int2": _plain(pa.int16()),
        "int4": _plain(pa.int32()),
        "int8": _plain(pa.int64()),
        "oid": _plain(pa.int64(), oids),
        "xid": _plain(pa.int64(), oids),
        "cid": _plain(pa.int64(), oids),
        "xid8": _plain(pa.decimal128(20, 0)),
        "float4": _plain(pa.float32()),
        "float8": _plain(pa.float64()),
        "bytea": _plain(pa.binary(), binaries),
        "date": _instants(pa.date32(), pa.int32(), days_of_date),
        "time": _Column(
            pa.time64("us"),
            partial(cast_with_unusual, cast=times, find=at_hour_24, read=microseconds_of_time, storage=pa.int64()),
        ),
        "timestamp": _instants(pa.timestamp("us"), pa.int64(), microseconds_of_timestamp),
        "timestamptz": _instants(pa.timestamp("us", tz="UTC"), pa.int64(), microseconds_of_timestamptz),
    }
)
