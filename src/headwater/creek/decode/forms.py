"""What becomes of a column's Avro value: a Python value, or the text that PostgreSQL writes for it.

A form says how to convert a branch of a column's type, given the name of the column's type in PostgreSQL. Python values are
those of `headwater.postgres.types`: what a Python type cannot hold (infinite dates, years before 1 and after 9999, 24:00:00)
stays the server's text. JSON, which stays text there, is parsed here: as Python's json does it, but a number that a float
would change is a Decimal. JSON's null is None, as SQL's NULL is; only the texts tell them apart.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import cache
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from headwater.creek.decode.instants import (
    DAY_MICROSECONDS,
    date_text,
    time_text,
    timestamp_text,
    timestamptz_text,
)
from headwater.creek.decode.shape import Enumeration, Kind, Node, Primitive
from headwater.creek.schema import NEGATIVE_INFINITY
from headwater.errors import MessageError
from headwater.postgres.types import Types, to_python
from headwater.postgres.types.literals import join_array

# None: the value is right as Avro has it.
Convert: TypeAlias = Callable[[Any], object] | None

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
# Decimal's own context would round to 28 digits.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_FLOAT = Struct("<f")
_SMALLEST_NORMAL = 2.0**-126
_JSON = frozenset({"json", "jsonb"})


@dataclass(frozen=True, slots=True)
class Form:
    """`convert` gives what to do with a branch of a type, `joined` what to do with the list that an array was read as."""

    convert: Callable[[Node, str], Convert]
    joined: Convert


def infinity_text(symbol: str) -> str:
    return "-infinity" if symbol == NEGATIVE_INFINITY else symbol


@cache
def type_oids() -> Mapping[str, int]:
    """The types that every server has, by name: what `pgType` can be."""
    return {type_.name: oid for oid, type_ in Types.builtin().items()}


def _python(node: Node, pg_type: str) -> Convert:
    match node:
        case Enumeration():
            return infinity_text
        case Primitive(Kind.BYTES, scale=None):
            return _json_value if pg_type in _JSON else _refuse_bytes(pg_type)
        case Primitive(Kind.BYTES, scale=scale):
            return _decimal(scale or 0)
        case Primitive(Kind.FLOAT):
            return _shortest
        case Primitive(Kind.STRING):
            return _parsed(pg_type)
        case Primitive(Kind.INT | Kind.LONG):
            return _INSTANTS.get(pg_type)
        case _:
            return None


def _text(node: Node, pg_type: str) -> Convert:
    match node:
        case Enumeration():
            return infinity_text
        case Primitive(Kind.BYTES, scale=None):
            return bytes.decode if pg_type in _JSON else _refuse_bytes(pg_type)
        case Primitive(Kind.BYTES, scale=scale):
            return _decimal_text(scale or 0)
        case Primitive(Kind.FLOAT):
            return float4_text
        case Primitive(Kind.DOUBLE):
            return float8_text
        case Primitive(Kind.BOOLEAN):
            return _bool_text
        case Primitive(Kind.INT | Kind.LONG):
            return _INSTANT_TEXTS.get(pg_type, str)
        case _:
            return None


def _array_text(values: list[object]) -> str:
    return join_array(values, ",", str)


PYTHON: Final = Form(_python, None)
TEXT: Final = Form(_text, _array_text)


def _parsed(pg_type: str) -> Convert:
    """For a string: text that PostgreSQL wrote for a value that Creek's own type for it cannot hold, or just text."""
    if pg_type in _JSON:
        return _json_value
    read = to_python(Types.builtin(), type_oids().get(pg_type, 0))
    return None if read is str else read


def _refuse_bytes(pg_type: str) -> Callable[[bytes], object]:
    def refuse(_: bytes) -> object:
        raise MessageError(f"a value of type {pg_type!r} is written as bytes without a scale, which no producer can fill")

    return refuse


def _json_value(data: bytes | str) -> object:
    return json.loads(data, parse_float=_json_number)


def _json_number(text: str) -> float | Decimal:
    number = float(text)
    if repr(number) == text:
        return number
    exact = Decimal(text)
    return number if exact == Decimal(repr(number)) else exact


def _decimal(scale: int) -> Callable[[bytes], Decimal]:
    if scale == 0:
        return lambda data: Decimal(int.from_bytes(data, signed=True))
    return lambda data: Decimal(int.from_bytes(data, signed=True)).scaleb(-scale, _EXACT)


def _decimal_text(scale: int) -> Callable[[bytes], str]:
    if scale == 0:
        return lambda data: str(int.from_bytes(data, signed=True))

    def write(data: bytes) -> str:
        unscaled = int.from_bytes(data, signed=True)
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
        return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"

    return write


def _date(days: int) -> date | str:
    try:
        return date.fromordinal(days + _EPOCH_ORDINAL)
    except (ValueError, OverflowError):
        return date_text(days)


def _time(microseconds: int) -> time | str:
    if not 0 <= microseconds <= DAY_MICROSECONDS:
        raise MessageError(f"{microseconds} microseconds are no time of a day")
    return time_text(microseconds) if microseconds == DAY_MICROSECONDS else (_EPOCH + timedelta(0, 0, microseconds)).time()


def _timestamp(microseconds: int) -> datetime | str:
    try:
        return _EPOCH + timedelta(0, 0, microseconds)
    except OverflowError:
        return timestamp_text(microseconds)


def instant(microseconds: int) -> datetime | str:
    """A timestamptz, in UTC; text if it is outside of the years 1 to 9999."""
    try:
        return _EPOCH_UTC + timedelta(0, 0, microseconds)
    except OverflowError:
        return timestamptz_text(microseconds)


_INSTANTS: Final[Mapping[str, Callable[[int], object]]] = MappingProxyType(
    {"date": _date, "time": _time, "timestamp": _timestamp, "timestamptz": instant}
)
_INSTANT_TEXTS: Final[Mapping[str, Callable[[int], str]]] = MappingProxyType(
    {"date": date_text, "time": time_text, "timestamp": timestamp_text, "timestamptz": timestamptz_text}
)


def _bool_text(value: bool) -> str:
    return "t" if value else "f"


def _shortest(value: float) -> float:
    """The float whose shortest text is that of the float4, so that 0.1 stays 0.1."""
    return float(float4_text(value))


def float4_text(value: float) -> str:
    """The shortest text that is read as the same number of 32 bits; with an exponent where PostgreSQL writes one."""
    if value != value or value in (float("inf"), float("-inf")):
        return float8_text(value)
    packed = _FLOAT.pack(value)
    # Six digits come back from all but the smallest ones, and nine tell any two of them apart.
    for digits in range(6 if abs(value) >= _SMALLEST_NORMAL else 1, 10):
        text = f"{value:.{digits}g}"
        if _FLOAT.pack(float(text)) == packed:
            break
    # PostgreSQL turns to exponents at a million, however many digits there are.
    return _with_exponent(text) if abs(value) >= 1e6 and "e" not in text else text


def float8_text(value: float) -> str:
    """The shortest text of a double; with an exponent where PostgreSQL writes one."""
    text = repr(value)
    if text[-1] in "nf":
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[text]
    text = text.removesuffix(".0")
    # Python turns to exponents at 1e16, PostgreSQL one power earlier.
    return _with_exponent(text) if abs(value) >= 1e15 and "e" not in text else text


def _with_exponent(text: str) -> str:
    """A number of at least 1 with its decimal point behind the first digit."""
    sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text)
    whole, _, fraction = digits.partition(".")
    rest = (whole[1:] + fraction).rstrip("0")
    return f"{sign}{whole[0]}{'.' if rest else ''}{rest}e+{len(whole) - 1:02d}"
