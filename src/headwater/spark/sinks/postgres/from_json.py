"""JSON values as a transform leaves them, turned back into the texts that PostgreSQL reads. Pure.

The forms are those that `postgres.types.json_form` writes. A user's transform may also put numbers where texts were, and
objects into columns of JSON.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from headwater.postgres.types import Kind, PgType, Types
from headwater.postgres.types.literals import join_array, join_row

Write: TypeAlias = Callable[[object], str]

_JSON = ("json", "jsonb")


class _Number(float):
    """A number that keeps the digits that it was written with."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> "_Number":
        number = super().__new__(cls, text)
        number.text = text
        return number


def parse_row(text: str | None) -> Mapping[str, Any] | None:
    """The columns of a row; None if there is no row. Raises ValueError for what is no JSON object."""
    if text is None:
        return None
    row = json.loads(text, parse_float=_Number)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


def to_literal(types: Types, oid: int) -> Write:
    """The function from a JSON value, which is not null, to the text that the type's input function reads."""
    return types.compiled(_writer, oid)


def _writer(types: Types, oid: int, _typmod: int) -> Write:
    type_, _ = types.resolve(oid)
    if type_.kind is Kind.ARRAY:
        return _array_writer(types, type_)
    if type_.kind is Kind.COMPOSITE:
        return _composite_writer(types, type_)
    if type_.is_vector:
        return lambda value: " ".join(map(plain_text, value)) if isinstance(value, list) else plain_text(value)
    return _json_text if type_.builtin_name in _JSON else plain_text


def _array_writer(types: Types, type_: PgType) -> Write:
    write, delimiter = to_literal(types, type_.element), types.delimiter(type_)
    return lambda value: join_array(value, delimiter, write) if isinstance(value, list) else plain_text(value)


def _composite_writer(types: Types, type_: PgType) -> Write:
    fields = [(field.name, to_literal(types, field.oid)) for field in type_.fields]

    def write_composite(value: object) -> str:
        if not isinstance(value, dict):
            return plain_text(value)
        return join_row([None if value.get(name) is None else write(value[name]) for name, write in fields])

    return write_composite


def plain_text(value: object) -> str:
    """A value that holds no others."""
    match value:
        case str():
            return value
        case bool():
            return "t" if value else "f"
        case _Number():
            return value.text
        case int():
            return str(value)
        case _:
            return _dumped(value)


def _json_text(value: object) -> str:
    """The text of a JSON column travels as a string."""
    return value if isinstance(value, str) else _dumped(value)


def _dumped(value: object) -> str:
    return value.text if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)
