"""Single values of built-in types: the server's text to Python, and back.

A type that is in neither table has no Python type that holds all its values exactly; it stays text. The same goes for single
values of those that are here: infinite dates, years before 1 and after 9999, and 24:00:00 stay the server's text.
"""

import re
from binascii import unhexlify
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

from headwater.postgres.types.instants import (
    INFINITE,
    days_of_date,
    microseconds_of_time,
    microseconds_of_timestamp,
    microseconds_of_timestamptz,
)
from headwater.postgres.types.malformed import malformed

Read: TypeAlias = Callable[[str], object]
Write: TypeAlias = Callable[[object], str]

# Python's own parsers take more than the server writes (underscores, spaces, other alphabets' digits), hence these.
FLOAT_TEXT: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|NaN|-?Infinity")
NUMERIC_TEXT: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?|NaN|-?Infinity")
_UUID_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_SPECIAL_FLOATS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _read_bool(text: str) -> bool:
    if text == "t":
        return True
    if text == "f":
        return False
    raise malformed("bool", text)


def _integer_reader(name: str, lowest: int, highest: int) -> Read:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError as error:
            raise malformed(name, text) from error
        if str(value) != text or not lowest <= value <= highest:
            raise malformed(name, text)
        return value

    return read


def _read_float(text: str) -> float:
    if not FLOAT_TEXT.fullmatch(text):
        raise malformed("float", text)
    return float(text)


def _read_numeric(text: str) -> Decimal:
    if not NUMERIC_TEXT.fullmatch(text):
        raise malformed("numeric", text)
    return Decimal(text)


def _read_bytea(text: str) -> bytes:
    if text[:2] != "\\x":
        raise malformed("bytea", text)
    try:
        return unhexlify(text[2:])
    except ValueError as error:
        raise malformed("bytea", text) from error


def _read_uuid(text: str) -> UUID:
    if not _UUID_TEXT.fullmatch(text):
        raise malformed("uuid", text)
    return UUID(text)


def _read_date(text: str) -> date | str:
    if len(text) == 10 and text[4] == "-" and text[7] == "-":
        try:
            return date.fromisoformat(text)
        except ValueError:
            pass
    return _kept(text, days_of_date)


def _read_time(text: str) -> time | str:
    # Later Pythons take 24:00:00 for midnight, which is another time.
    if text[2:3] == ":" == text[5:6] and text[:2] != "24":
        try:
            value = time.fromisoformat(text)
        except ValueError:
            pass
        else:
            if value.tzinfo is None:
                return value
    microseconds_of_time(text)
    return text


def _read_timestamp(text: str) -> datetime | str:
    value = _datetime_or_none(text)
    return value if value is not None and value.tzinfo is None else _kept(text, microseconds_of_timestamp)


def _read_timestamptz(text: str) -> datetime | str:
    value = _datetime_or_none(text)
    return value if value is not None and value.tzinfo is not None else _kept(text, microseconds_of_timestamptz)


def _datetime_or_none(text: str) -> datetime | None:
    if text[4:5] == "-" and text[10:11] == " " and text[16:17] == ":":
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            pass
    return None


def _kept(text: str, check: Callable[[str], int]) -> str:
    """The text of a date that Python cannot hold, once it is sure that it is one."""
    if text not in INFINITE:
        check(text)
    return text


def write_text(value: object) -> str:
    """The text that a value is already, for all values that stayed text."""
    if isinstance(value, str):
        return value
    raise TypeError(f"a {type(value).__name__} is not a value of this type")


def _write_bool(value: object) -> str:
    return ("t" if value else "f") if isinstance(value, bool) else write_text(value)


def _write_integer(value: object) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else write_text(value)


def _write_float(value: object) -> str:
    if not isinstance(value, int | float):
        return write_text(value)
    text = str(value)
    return _SPECIAL_FLOATS.get(text) or text.removesuffix(".0")


def _write_numeric(value: object) -> str:
    # Not `str`, which turns to exponents and so loses the display scale for the reader of the text.
    return format(value, "f") if isinstance(value, Decimal) else _write_integer(value)


def _write_bytea(value: object) -> str:
    return "\\x" + value.hex() if isinstance(value, bytes) else write_text(value)


def _write_uuid(value: object) -> str:
    return str(value) if isinstance(value, UUID) else write_text(value)


def _write_instant(value: object) -> str:
    """A date or time as the server writes it: no trailing zeros, and no minutes for an offset of whole hours."""
    if isinstance(value, datetime):
        local = value.replace(tzinfo=None).isoformat(" ")
        offset = value.isoformat(" ")[len(local) :]
        return _without_zeros(local) + offset.removesuffix(":00")
    if isinstance(value, time):
        return _without_zeros(value.isoformat())
    return value.isoformat() if isinstance(value, date) else write_text(value)


def _without_zeros(text: str) -> str:
    return text.rstrip("0") if "." in text else text


_INTEGERS = {
    "int2": (-(2**15), 2**15 - 1),
    "int4": (-(2**31), 2**31 - 1),
    "int8": (-(2**63), 2**63 - 1),
    "oid": (0, 2**32 - 1),
    "xid": (0, 2**32 - 1),
    "cid": (0, 2**32 - 1),
    "xid8": (0, 2**64 - 1),
}

READERS: Final[Mapping[str, Read]] = MappingProxyType(
    {
        **{name: _integer_reader(name, lowest, highest) for name, (lowest, highest) in _INTEGERS.items()},
        "bool": _read_bool,
        "float4": _read_float,
        "float8": _read_float,
        "numeric": _read_numeric,
        "bytea": _read_bytea,
        "uuid": _read_uuid,
        "date": _read_date,
        "time": _read_time,
        "timestamp": _read_timestamp,
        "timestamptz": _read_timestamptz,
    }
)

WRITERS: Final[Mapping[str, Write]] = MappingProxyType(
    {
        **dict.fromkeys(_INTEGERS, _write_integer),
        "bool": _write_bool,
        "float4": _write_float,
        "float8": _write_float,
        "numeric": _write_numeric,
        "bytea": _write_bytea,
        "uuid": _write_uuid,
        **dict.fromkeys(("date", "time", "timestamp", "timestamptz"), _write_instant),
    }
)
