"""Readers of whole rows, compiled once for a schema: as a dict by column, or as a list in the order of the columns.

A column has a general reader, put together from those of `binary`. A row's reader is Python code made for its record, which
reads the usual branch of each column in place and leaves everything else to the general one: that takes half the time of
calling a reader for every column, and decoding is most of what a client does.
"""

from collections.abc import Callable
from textwrap import indent
from typing import Any, TypeAlias

from headwater.creek.decode.binary import (
    PRIMITIVES,
    Read,
    array,
    converted,
    nullable,
    read_length,
    read_long,
    symbol,
    union,
)
from headwater.creek.decode.forms import Form
from headwater.creek.decode.shape import Array, Enumeration, Kind, Node, Primitive, Record, Shape
from headwater.errors import MessageError

ReadRow: TypeAlias = Callable[[bytes, int], tuple[dict[str, object], int]]
ReadList: TypeAlias = Callable[[bytes, int], tuple[list[str | None], int]]

_NULL = Primitive(Kind.NULL)

# What reads a value that begins at {at} in place, into the variable of column {i}.
_NUMBER = """
number = data[{at}]
if number < 128:
    v{i} = (number >> 1) ^ -(number & 1)
    place = {at} + 1
elif data[{at} + 1] < 128:
    number = number & 127 | data[{at} + 1] << 7
    v{i} = (number >> 1) ^ -(number & 1)
    place = {at} + 2
else:
    v{i}, place = read_long(data, {at})
"""
# Up to 63 bytes have a size of one byte, up to 8191 of two.
_SIZED = """
size = data[{at}]
if not size & 129:
    size >>= 1
    place = {at} + 1
elif not size & 1 and data[{at} + 1] < 128:
    size = (size & 127 | data[{at} + 1] << 7) >> 1
    place = {at} + 2
else:
    size, place = read_length(data, {at})
v{i} = data[place : place + size]
place += size
"""
_DECODED = _SIZED.replace("place + size]", "place + size].decode()")
_CONVERTED = """
v{i} = c{i}(v{i})
"""
_IN_PLACE = {Kind.INT: _NUMBER, Kind.LONG: _NUMBER, Kind.BYTES: _SIZED, Kind.STRING: _DECODED}
_GENERAL = """
v{i}, place = r{i}(data, place)
"""
# The second branch of a union whose first is null; its index is written doubled.
_NULLABLE = """
if data[place] == 2:
{value}
elif data[place] == 0:
    v{i} = None
    place += 1
else:
    v{i}, place = r{i}(data, place)
"""


def row_reader(record: Record, form: Form) -> ReadRow:
    """Rows as dicts."""
    pairs = ", ".join(f"{field.name!r}: v{i}" for i, field in enumerate(record.fields))
    read: ReadRow = _compiled(record, form, f"{{{pairs}}}")
    return read


def list_reader(record: Record, form: Form) -> ReadList:
    """Rows as lists of texts."""
    read: ReadList = _compiled(record, form, f"[{', '.join(f'v{i}' for i in range(len(record.fields)))}]")
    return read


def _compiled(record: Record, form: Form, result: str) -> Any:
    names: dict[str, object] = {"read_long": read_long, "read_length": read_length}
    body = ""
    for i, field in enumerate(record.fields):
        usual = _usual(field.shape)
        convert = form.convert(usual, field.pg_type) if usual else None
        names |= {f"r{i}": _shape_reader(field.shape, field.pg_type, form), f"c{i}": convert}
        body += _column(i, field.shape, usual, is_converted=convert is not None)
    # Nothing in it comes from outside but the names of columns, as literals.
    exec(f"def read(data, place):\n{indent(body, '    ')}\n    return {result}, place\n", names)
    return names["read"]


def _usual(shape: Shape) -> Primitive | None:
    """The branch that nearly all values have, if it can be read in place."""
    branches = shape.branches[1:] if shape.branches[0] == _NULL else shape.branches
    is_certain = not shape.is_union or shape.branches[0] == _NULL
    usual = branches[0] if branches else None
    return usual if isinstance(usual, Primitive) and usual.kind in _IN_PLACE and is_certain else None


def _column(i: int, shape: Shape, usual: Primitive | None, *, is_converted: bool) -> str:
    """The code that leaves a column's value in its variable, and the place behind it in `place`."""
    if usual is None:
        return _GENERAL.format(i=i)
    code = _IN_PLACE[usual.kind] + (_CONVERTED if is_converted else "")
    if not shape.is_union:
        return code.format(i=i, at="place")
    return _NULLABLE.format(i=i, value=indent(code.format(i=i, at="place + 1"), "    "))


def _shape_reader(shape: Shape, pg_type: str, form: Form) -> Read:
    branches = [_node_reader(node, pg_type, form) for node in shape.branches]
    if not shape.is_union:
        return branches[0]
    if len(branches) == 2 and shape.branches[0] == _NULL:
        return nullable(branches[1])
    return union(branches)


def _node_reader(node: Node, pg_type: str, form: Form) -> Read:
    match node:
        case Array(items):
            # The name of an array's type is that of its elements', with an underscore in front.
            read, convert = array(_shape_reader(items, pg_type.removeprefix("_"), form)), form.joined
        case Enumeration(symbols):
            read, convert = symbol(symbols), form.convert(node, pg_type)
        case Primitive(kind):
            read, convert = PRIMITIVES[kind], form.convert(node, pg_type)
        case Record(name):
            raise MessageError(f"column of type {pg_type!r} is a record {name!r}, which Creek does not write")
    return read if convert is None else converted(read, convert)
