"""The server's text to Python values, and back, for any type.

What the Python type cannot hold exactly stays the server's text; so `to_text` takes a string for any type and passes it on.
Single values are in `scalars`; here are those that hold others:

array, vector    list, nested by dimension; text when a lower bound is not 1
composite        dict by field name; text when the value's fields are not those that the registry knows, by number or type
range            `psycopg.types.range.Range`, multirange: `psycopg.types.multirange.Multirange`
"""

from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from headwater.errors import DecodeError
from headwater.postgres.types.literals import (
    RangeText,
    join_array,
    join_multirange,
    join_range,
    join_row,
    split_array,
    split_multirange,
    split_range,
    split_row,
)
from headwater.postgres.types.registry import Kind, PgType, Types
from headwater.postgres.types.scalars import READERS, WRITERS, Read, Write, write_text


def to_python(types: Types, oid: int) -> Read:
    """The function from the server's text to Python for a type; it raises `DecodeError` for text that is no value of it."""
    return types.compiled(_reader, oid)


def to_text(types: Types, oid: int) -> Write:
    """The function from Python to text that the server reads as the same value."""
    return types.compiled(_writer, oid)


def _reader(types: Types, oid: int, _typmod: int) -> Read:
    type_, _ = types.resolve(oid)
    match type_.kind:
        case Kind.ARRAY:
            return _array_reader(types, type_)
        case Kind.COMPOSITE:
            return _composite_reader(types, type_)
        case Kind.RANGE:
            return _range_reader(types, type_)
        case Kind.MULTIRANGE:
            return _multirange_reader(types, type_)
        case _:
            return _vector_reader(types, type_) if type_.is_vector else READERS.get(type_.builtin_name, str)


def _writer(types: Types, oid: int, _typmod: int) -> Write:
    type_, _ = types.resolve(oid)
    match type_.kind:
        case Kind.ARRAY:
            return _array_writer(types, type_)
        case Kind.COMPOSITE:
            return _composite_writer(types, type_)
        case Kind.RANGE:
            return _range_writer(types, type_)
        case Kind.MULTIRANGE:
            return _multirange_writer(types, type_)
        case _:
            return _vector_writer(types, type_) if type_.is_vector else WRITERS.get(type_.builtin_name, write_text)


def _array_reader(types: Types, type_: PgType) -> Read:
    read, delimiter = to_python(types, type_.element), types.delimiter(type_)
    # A list in a list is a dimension; an element that is a list itself (a domain over an array) would look the same.
    convert = _checked(read) if types.resolve(type_.element)[0].is_list else read

    def read_array(text: str) -> object:
        values = split_array(text, delimiter, convert)
        return text if values is None else values

    return read_array


def _checked(read: Read) -> Read:
    def check(text: str) -> str:
        read(text)
        return text

    return check


def _array_writer(types: Types, type_: PgType) -> Write:
    write, delimiter = to_text(types, type_.element), types.delimiter(type_)

    def write_array(value: object) -> str:
        return join_array(value, delimiter, write) if isinstance(value, list) else write_text(value)

    return write_array


def _vector_reader(types: Types, type_: PgType) -> Read:
    read = to_python(types, type_.element)
    return lambda text: [read(part) for part in text.split()]


def _vector_writer(types: Types, type_: PgType) -> Write:
    write = to_text(types, type_.element)
    return lambda value: " ".join(map(write, value)) if isinstance(value, list) else write_text(value)


def _composite_reader(types: Types, type_: PgType) -> Read:
    fields = [(field.name, to_python(types, field.oid)) for field in type_.fields]

    def read_composite(text: str) -> object:
        parts = split_row(text)
        if len(parts) != len(fields):
            return {} if text == "()" and not fields else text
        try:
            return {name: None if part is None else read(part) for (name, read), part in zip(fields, parts, strict=True)}
        except DecodeError:
            # The type was altered between the value and what the registry knows: as many fields, but others.
            return text

    return read_composite


def _composite_writer(types: Types, type_: PgType) -> Write:
    fields = [(field.name, to_text(types, field.oid)) for field in type_.fields]

    def write_composite(value: object) -> str:
        if not isinstance(value, dict):
            return write_text(value)
        return join_row([None if value[name] is None else write(value[name]) for name, write in fields])

    return write_composite


def _range_reader(types: Types, type_: PgType) -> Read:
    read = to_python(types, type_.element)
    return lambda text: _range(split_range(text), read)


def _multirange_reader(types: Types, type_: PgType) -> Read:
    read = to_python(types, _subtype(types, type_))
    return lambda text: Multirange(_range(part, read) for part in split_multirange(text))


def _range(parts: RangeText | None, read: Read) -> Range[object]:
    if parts is None:
        return Range(empty=True)
    lower = None if parts.lower is None else read(parts.lower)
    upper = None if parts.upper is None else read(parts.upper)
    return Range(lower, upper, parts.bounds)


def _range_writer(types: Types, type_: PgType) -> Write:
    write = to_text(types, type_.element)
    return lambda value: join_range(_parts(value, write)) if isinstance(value, Range) else write_text(value)


def _multirange_writer(types: Types, type_: PgType) -> Write:
    write = to_text(types, _subtype(types, type_))

    def write_multirange(value: object) -> str:
        if not isinstance(value, Multirange):
            return write_text(value)
        parts = (_parts(range_, write) for range_ in value)
        return join_multirange([part for part in parts if part is not None])

    return write_multirange


def _parts(range_: Range[object], write: Write) -> RangeText | None:
    if range_.isempty:
        return None
    lower = None if range_.lower is None else write(range_.lower)
    upper = None if range_.upper is None else write(range_.upper)
    return RangeText(lower, upper, range_.bounds)


def _subtype(types: Types, multirange: PgType) -> int:
    """What the ranges of a multirange go over; 0, and so text, when the registry does not know the range."""
    return types[multirange.element].element if multirange.element in types else 0
