"""The server's text to JSON, for any type and without loss: `to_json` gives the function from text to a JSON fragment.

bool, integers, floats      as they are; NaN and the infinities as strings
date and times              strings as PostgreSQL's own `to_json` writes them (ISO 8601, `T`, offset with minutes)
array, vector               array, nested by dimension; a string with the server's text when a lower bound is not 1
composite                   object; a string with the server's text when its fields are not those that the registry knows,
                            by number or type
all else                    string with the server's text: numeric (no reader rounds it), and json and jsonb, so that
                            JSON's null is not taken for SQL's
"""

import re
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from types import MappingProxyType
from typing import Final, TypeAlias

from headwater.errors import DecodeError
from headwater.postgres.types.instants import INFINITE, microseconds_of_timestamp, microseconds_of_timestamptz
from headwater.postgres.types.literals import split_array, split_row
from headwater.postgres.types.malformed import malformed
from headwater.postgres.types.registry import Kind, PgType, Types
from headwater.postgres.types.scalars import FLOAT_TEXT, NUMERIC_TEXT, READERS

Fragment: TypeAlias = Callable[[str], str]

_INTEGER_TEXT = re.compile(r"-?(?:0|[1-9][0-9]*)")
# The usual text of a timestamp; what does not match is looked at closely.
_USUAL_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?")
_HOURS_ONLY = re.compile(r"([+-][0-9]{2})(?= BC|\Z)")


def to_json(types: Types, oid: int) -> Fragment:
    """The function from the server's text to JSON for a type; it raises `DecodeError` for text that is no value of it."""
    return types.compiled(_writer, oid)


def _writer(types: Types, oid: int, _typmod: int) -> Fragment:
    type_, _ = types.resolve(oid)
    if type_.kind is Kind.ARRAY:
        return _array_writer(types, type_)
    if type_.kind is Kind.COMPOSITE:
        return _composite_writer(types, type_)
    return _vector_writer(types, type_) if type_.is_vector else _SCALARS.get(type_.builtin_name, encode_basestring)


def _array_writer(types: Types, type_: PgType) -> Fragment:
    write, delimiter = to_json(types, type_.element), types.delimiter(type_)
    # As in Python: an array in an array is a dimension, so an element that is a list itself must not look like one.
    convert = _checked(write) if types.resolve(type_.element)[0].is_list else write

    def write_array(text: str) -> str:
        values = split_array(text, delimiter, convert)
        return encode_basestring(text) if values is None else _joined(values)

    return write_array


def _checked(convert: Callable[[str], object]) -> Fragment:
    """The text as a string, once it is sure that it converts."""

    def check(text: str) -> str:
        convert(text)
        return encode_basestring(text)

    return check


def _joined(values: list[object]) -> str:
    """Nested lists of fragments as a JSON array."""
    return "[" + ",".join(map(_element, values)) + "]"


def _element(value: object) -> str:
    if isinstance(value, list):
        return _joined(value)
    return "null" if value is None else str(value)


def _vector_writer(types: Types, type_: PgType) -> Fragment:
    write = to_json(types, type_.element)
    return lambda text: "[" + ",".join(map(write, text.split())) + "]"


def _composite_writer(types: Types, type_: PgType) -> Fragment:
    fields = [(encode_basestring(field.name) + ":", to_json(types, field.oid)) for field in type_.fields]

    def write_composite(text: str) -> str:
        parts = split_row(text)
        if len(parts) != len(fields):
            return "{}" if text == "()" and not fields else encode_basestring(text)
        try:
            members = [
                name + ("null" if part is None else write(part)) for (name, write), part in zip(fields, parts, strict=True)
            ]
        except DecodeError:
            # The type was altered between the value and what the registry knows: as many fields, but others.
            return encode_basestring(text)
        return "{" + ",".join(members) + "}"

    return write_composite


def _write_bool(text: str) -> str:
    if text == "t":
        return "true"
    if text == "f":
        return "false"
    raise malformed("bool", text)


def _write_integer(text: str) -> str:
    if _INTEGER_TEXT.fullmatch(text):
        return text
    raise malformed("integer", text)


def _write_float(text: str) -> str:
    if not FLOAT_TEXT.fullmatch(text):
        raise malformed("float", text)
    return f'"{text}"' if text[-1] > "9" else text


def _write_numeric(text: str) -> str:
    if NUMERIC_TEXT.fullmatch(text):
        return f'"{text}"'
    raise malformed("numeric", text)


def _write_timestamp(text: str) -> str:
    if text in INFINITE:
        return f'"{text}"'
    if not _USUAL_TIMESTAMP.fullmatch(text):
        microseconds_of_timestamp(text)
    return f'"{text.replace(" ", "T", 1)}"'


def _write_timestamptz(text: str) -> str:
    if text[-3:] == "+00" and _USUAL_TIMESTAMP.fullmatch(text, 0, len(text) - 3):
        return f'"{text[:10]}T{text[11:]}:00"'
    if text in INFINITE:
        return f'"{text}"'
    microseconds_of_timestamptz(text)
    return '"' + _HOURS_ONLY.sub(r"\1:00", text.replace(" ", "T", 1)) + '"'


_SCALARS: Final[Mapping[str, Fragment]] = MappingProxyType(
    {
        **dict.fromkeys(("int2", "int4", "int8", "oid", "xid", "cid", "xid8"), _write_integer),
        **{name: _checked(READERS[name]) for name in ("bytea", "uuid", "date", "time")},
        "bool": _write_bool,
        "float4": _write_float,
        "float8": _write_float,
        "numeric": _write_numeric,
        "timestamp": _write_timestamp,
        "timestamptz": _write_timestamptz,
    }
)
