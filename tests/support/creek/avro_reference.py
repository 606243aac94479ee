"""Avro row by row through fastavro, from text and to text again: what the vectors of the encoder are held against.

Logical types are taken out of the schema, so that a number stays a number, and nothing depends on what Python can hold.
"""

import io
import json
import struct
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import Any

import fastavro
import numpy as np

from headwater.creek.schema import INFINITY, NEGATIVE_INFINITY, RowRecord
from headwater.creek.types import ColumnType, Form
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.types import Types
from headwater.postgres.types.instants import (
    days_of_date,
    microseconds_of_time,
    microseconds_of_timestamp,
    microseconds_of_timestamptz,
)
from headwater.postgres.types.literals import join_array, split_array
from tests.integration.postgres.types.test_every_type import text_of_clock, text_of_days, text_of_microseconds

TYPES = Types.builtin()
OIDS = {type_.name: type_.oid for type_ in TYPES.values()}
NUMERIC_12_2, NUMERIC_10_5, NUMERIC_38_10, NUMERIC_100_50 = (
    ((precision << 16) | scale) + 4 for precision, scale in ((12, 2), (10, 5), (38, 10), (100, 50))
)
_ENUMS = {"infinity": INFINITY, "-infinity": NEGATIVE_INFINITY}
_INFINITE = {symbol: text for text, symbol in _ENUMS.items()}


def relation(name: str, *columns: tuple[str, str, bool] | tuple[str, str, bool, int], identity: str = "d") -> Relation:
    """A table of (name, type, whether it is part of the key, typmod) columns."""
    made = (RelationColumn(each[0], each[2], OIDS[each[1]], each[3] if len(each) > 3 else -1) for each in columns)
    return Relation(16400, "public", name, identity, tuple(made))


def bare(schema: Any) -> Any:
    """A schema without logical types."""
    if isinstance(schema, list):
        return [bare(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    if "logicalType" in schema:
        return schema["type"]
    return {key: bare(value) if key in ("type", "items", "fields") else value for key, value in schema.items()}


def read(schema: str, datum: bytes) -> Any:
    """A datum, all of which must be taken."""
    stream = io.BytesIO(datum)
    value = fastavro.schemaless_reader(stream, _parsed(schema), None)
    assert stream.read() == b""
    return value


def write(schema: str, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, _parsed(schema), value, strict=True)
    return stream.getvalue()


@cache
def _parsed(schema: str) -> Any:
    return fastavro.parse_schema(bare(json.loads(schema)))


def row_value(record: RowRecord, texts: Mapping[str, str | None]) -> dict[str, Any]:
    """A row as fastavro takes it, from texts by column."""
    return {field.name: value_of(field.type, texts[field.column]) for field in record.fields}


def row_texts(record: RowRecord, value: Mapping[str, Any]) -> dict[str, str | None]:
    """A row as texts by column again."""
    return {field.column: text_of(field.type, value[field.name]) for field in record.fields}


def value_of(type_: ColumnType, text: str | None) -> Any:
    """A value by itself; what its form cannot hold is the text."""
    if text is None:
        return None
    if not type_.is_array:
        return _scalar(type_, text)
    elements = split_array(text, ",", str)
    if elements is None or not all(isinstance(element, str) for element in elements):
        return text
    values = [_scalar(type_, str(element)) for element in elements]
    is_held = type_.form in (Form.STRING, Form.UUID) or not any(isinstance(value, str) for value in values)
    return values if is_held or all(value in _INFINITE for value in values if isinstance(value, str)) else text


def _scalar(type_: ColumnType, text: str) -> Any:
    match type_.form:
        case Form.BOOLEAN:
            return text == "t"
        case Form.INT | Form.LONG:
            return int(text)
        case Form.FLOAT:
            return struct.unpack("<f", struct.pack("<f", float(text)))[0]
        case Form.DOUBLE:
            return float(text)
        case Form.JSON:
            value = json.loads(text)
            written = json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
            return (written if isinstance(value, dict) else text).encode()
        case Form.DECIMAL:
            return text if text[-1] > "9" else _units(type_, Decimal(text))
        case Form.DATE | Form.TIME | Form.TIMESTAMP:
            return _ENUMS.get(text) or _instant(type_, text)
        case _:
            return text


def _units(type_: ColumnType, value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    units = int("".join(map(str, digits))) * 10 ** (type_.scale + int(exponent)) * (-1 if sign else 1)
    return bytes(units.to_bytes(units.bit_length() // 8 + 1, signed=True))


def _instant(type_: ColumnType, text: str) -> int | str:
    readers = {"date": days_of_date, "time": microseconds_of_time, "timestamp": microseconds_of_timestamp}
    number = readers.get(TYPES[type_.oid].name, microseconds_of_timestamptz)(text)
    return number if -(2**63) < number < 2**63 - 1 else text


def text_of(type_: ColumnType, value: Any) -> str | None:
    """The server's text of what was read, but for JSON's order and blanks."""
    if value is None or (isinstance(value, str) and type_.is_array):
        return value
    if isinstance(value, list):
        return join_array(value, ",", lambda element: _text(type_, element))
    return _text(type_, value)


def _text(type_: ColumnType, value: Any) -> str:
    if isinstance(value, str):
        return value if type_.form in (Form.STRING, Form.UUID) else _INFINITE.get(value, value)
    match type_.form:
        case Form.BOOLEAN:
            return "t" if value else "f"
        case Form.FLOAT:
            return str(np.float32(value))
        case Form.JSON:
            return str(value, "utf-8")
        case Form.DECIMAL:
            digits = str(abs(int.from_bytes(value, signed=True))).rjust(type_.scale + 1, "0")
            sign = "-" if value[0] & 0x80 else ""
            return sign + (f"{digits[: -type_.scale]}.{digits[-type_.scale :]}" if type_.scale else digits)
        case Form.DATE:
            return text_of_days(value)
        case Form.TIME:
            return text_of_clock(value)
        case Form.TIMESTAMP:
            return text_of_microseconds(value, "+00" if TYPES[type_.oid].name == "timestamptz" else "")
        case _:
            return str(value)
