"""Avro's binary encoding: each reader takes bytes and a place in them, and gives the value and the place behind it.

https://avro.apache.org/docs/1.12.0/specification/#binary-encoding. Slices that reach behind the end are not looked at here:
whoever reads a whole datum checks that it ends where the bytes do.
"""

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from headwater.creek.decode.shape import Kind
from headwater.errors import MessageError

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]

_FLOAT = Struct("<f")
_DOUBLE = Struct("<d")
# Ten groups of seven bits hold any number of 64 bits.
_MOST_BITS = 70


def read_long(data: bytes, place: int) -> tuple[int, int]:
    """A zigzag number of up to 64 bits; ints are written alike."""
    byte = data[place]
    place += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), place
    number, shift = byte & 127, 7
    while shift < _MOST_BITS:
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return (number >> 1) ^ -(number & 1), place
        shift += 7
    raise MessageError("a number has more than 64 bits")


def read_length(data: bytes, place: int) -> tuple[int, int]:
    """The length of what follows."""
    length, place = read_long(data, place)
    if length < 0:
        raise MessageError("a length is negative")
    return length, place


def read_bytes(data: bytes, place: int) -> tuple[bytes, int]:
    length = data[place]
    # One byte, and not negative: nearly always so.
    if length & 129:
        length, place = read_length(data, place)
    else:
        length >>= 1
        place += 1
    end = place + length
    return data[place:end], end


def read_string(data: bytes, place: int) -> tuple[str, int]:
    length = data[place]
    if length & 129:
        length, place = read_length(data, place)
    else:
        length >>= 1
        place += 1
    end = place + length
    return data[place:end].decode(), end


def _read_null(_data: bytes, place: int) -> tuple[None, int]:
    return None, place


def _read_boolean(data: bytes, place: int) -> tuple[bool, int]:
    return data[place] == 1, place + 1


def _read_float(data: bytes, place: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, place)[0], place + 4


def _read_double(data: bytes, place: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, place)[0], place + 8


PRIMITIVES: Final[Mapping[Kind, Read]] = MappingProxyType(
    {
        Kind.NULL: _read_null,
        Kind.BOOLEAN: _read_boolean,
        Kind.INT: read_long,
        Kind.LONG: read_long,
        Kind.FLOAT: _read_float,
        Kind.DOUBLE: _read_double,
        Kind.BYTES: read_bytes,
        Kind.STRING: read_string,
    }
)


def converted(read: Read, convert: Callable[[Any], object]) -> Read:
    """What `read` gives, as `convert` makes it."""

    def read_converted(data: bytes, place: int) -> tuple[object, int]:
        value, place = read(data, place)
        return convert(value), place

    return read_converted


def nullable(read: Read) -> Read:
    """A union of null and one type."""

    def read_nullable(data: bytes, place: int) -> tuple[object, int]:
        branch = data[place]
        if branch == 2:
            return read(data, place + 1)
        if branch == 0:
            return None, place + 1
        raise MessageError(f"a union of two has no branch {branch >> 1}")

    return read_nullable


def union(branches: Sequence[Read]) -> Read:
    """A union of any types."""

    def read_union(data: bytes, place: int) -> tuple[object, int]:
        branch, place = read_length(data, place)
        if branch >= len(branches):
            raise MessageError(f"a union of {len(branches)} has no branch {branch}")
        return branches[branch](data, place)

    return read_union


def symbol(symbols: Sequence[str]) -> Read:
    """An enum, by the name of its symbol."""

    def read_symbol(data: bytes, place: int) -> tuple[str, int]:
        index, place = read_length(data, place)
        if index >= len(symbols):
            raise MessageError(f"an enum of {len(symbols)} has no symbol {index}")
        return symbols[index], place

    return read_symbol


def array(read: Read) -> Read:
    """Blocks of items up to an empty one; a negative count has the size of its block behind it."""

    def read_array(data: bytes, place: int) -> tuple[list[object], int]:
        items: list[object] = []
        count, place = read_long(data, place)
        while count:
            if count < 0:
                count = -count
                _, place = read_length(data, place)
            if count > len(data):
                raise MessageError("an array has more items than the message has bytes")
            for _ in range(count):
                item, place = read(data, place)
                items.append(item)
            count, place = read_long(data, place)
        return items, place

    return read_array
