"""The types of AMQP 1.0 (part 1 of its specification) as bytes and back: what frames and messages consist of.

Python's own values stand for most types. `Symbol`, `Uint`, `Ulong`, `Ushort` and `Ubyte` say which type is meant where one
value of Python could be several.
"""

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Symbol(str):
    """A symbolic name, such as a condition."""

    __slots__ = ()


class Ubyte(int):
    """Of one byte."""

    __slots__ = ()


class Ushort(int):
    """Of two bytes."""

    __slots__ = ()


class Uint(int):
    """Of four bytes."""

    __slots__ = ()


class Ulong(int):
    """Of eight bytes."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value whose meaning a number gives, as in the performatives and the sections of a message."""

    code: int
    value: Any


def encode(value: Any) -> bytes:
    if isinstance(value, Described):
        return b"\x00\x53" + bytes([value.code]) + encode(value.value)
    return _ENCODERS[type(value)](value)


def decode(data: memoryview, at: int = 0) -> tuple[Any, int]:
    """The value that begins at a place, and where the next one begins."""
    code = data[at]
    at += 1
    if code == 0:
        descriptor, at = decode(data, at)
        value, at = decode(data, at)
        return Described(int(descriptor), value), at
    if code in _FIXED:
        size, build = _FIXED[code]
        return build(data[at : at + size]), at + size
    if code in _VARIABLE:
        width, make = _VARIABLE[code]
        start = at + width
        end = start + int.from_bytes(data[at:start], "big")
        return make(data[start:end]), end
    width, gather = _COMPOUND[code]
    end = at + width + int.from_bytes(data[at : at + width], "big")
    count = int.from_bytes(data[at + width : at + 2 * width], "big")
    return gather(data, at + 2 * width, count), end


def decode_all(data: memoryview) -> list[Any]:
    """All values that follow each other, such as the sections of a message."""
    found, at = [], 0
    while at < len(data):
        value, at = decode(data, at)
        found.append(value)
    return found


def _variable(code: int, data: bytes) -> bytes:
    """Codes with a size of one byte and of four are 0x10 apart in all these types."""
    if len(data) < 256:
        return bytes([code, len(data)]) + data
    return bytes([code + 0x10]) + struct.pack(">I", len(data)) + data


def _compound(code: int, items: list[Any]) -> bytes:
    data = b"".join(encode(item) for item in items)
    return bytes([code]) + struct.pack(">II", len(data) + 4, len(items)) + data


def _pairs(value: dict[Any, Any]) -> list[Any]:
    return [item for pair in value.items() for item in pair]


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    Ubyte: lambda value: struct.pack(">BB", 0x50, value),
    Ushort: lambda value: struct.pack(">BH", 0x60, value),
    Uint: lambda value: struct.pack(">BI", 0x70, value),
    Ulong: lambda value: struct.pack(">BQ", 0x80, value),
    int: lambda value: struct.pack(">Bq", 0x81, value),
    uuid.UUID: lambda value: b"\x98" + value.bytes,
    bytes: lambda value: _variable(0xA0, value),
    str: lambda value: _variable(0xA1, value.encode()),
    Symbol: lambda value: _variable(0xA3, value.encode("ascii")),
    list: lambda value: _compound(0xD0, value),
    dict: lambda value: _compound(0xD1, _pairs(value)),
}


def _unsigned(kind: type[int]) -> Callable[[memoryview], Any]:
    return lambda data: kind(int.from_bytes(data, "big"))


def _signed(data: memoryview) -> int:
    return int.from_bytes(data, "big", signed=True)


_FIXED: dict[int, tuple[int, Callable[[memoryview], Any]]] = {
    0x40: (0, lambda _: None),
    0x41: (0, lambda _: True),
    0x42: (0, lambda _: False),
    0x43: (0, lambda _: Uint(0)),
    0x44: (0, lambda _: Ulong(0)),
    0x45: (0, lambda _: []),
    0x50: (1, _unsigned(Ubyte)),
    0x51: (1, _signed),
    0x52: (1, _unsigned(Uint)),
    0x53: (1, _unsigned(Ulong)),
    0x54: (1, _signed),
    0x55: (1, _signed),
    0x56: (1, lambda data: data[0] == 1),
    0x60: (2, _unsigned(Ushort)),
    0x61: (2, _signed),
    0x70: (4, _unsigned(Uint)),
    0x71: (4, _signed),
    0x72: (4, lambda data: struct.unpack(">f", data)[0]),
    0x80: (8, _unsigned(Ulong)),
    0x81: (8, _signed),
    0x82: (8, lambda data: struct.unpack(">d", data)[0]),
    0x83: (8, _signed),
    0x98: (16, lambda data: uuid.UUID(bytes=bytes(data))),
}

_VARIABLE: dict[int, tuple[int, Callable[[memoryview], Any]]] = {
    0xA0: (1, bytes),
    0xB0: (4, bytes),
    0xA1: (1, lambda data: str(data, "utf-8")),
    0xB1: (4, lambda data: str(data, "utf-8")),
    0xA3: (1, lambda data: Symbol(str(data, "ascii"))),
    0xB3: (4, lambda data: Symbol(str(data, "ascii"))),
}


def _list(data: memoryview, at: int, count: int) -> list[Any]:
    items = []
    for _ in range(count):
        item, at = decode(data, at)
        items.append(item)
    return items


def _map(data: memoryview, at: int, count: int) -> dict[Any, Any]:
    items = _list(data, at, count)
    return dict(zip(items[::2], items[1::2], strict=True))


def _array(data: memoryview, at: int, count: int) -> list[Any]:
    """Its elements share one constructor, which stands before them; the client sends only plain ones."""
    code = data[at : at + 1]
    items, at = [], at + 1
    for _ in range(count):
        # Taken apart as if each had its own constructor.
        item, end = decode(memoryview(bytes(code) + bytes(data[at:])))
        items.append(item)
        at += end - 1
    return items


_COMPOUND: dict[int, tuple[int, Callable[[memoryview, int, int], Any]]] = {
    0xC0: (1, _list),
    0xD0: (4, _list),
    0xC1: (1, _map),
    0xD1: (4, _map),
    0xE0: (1, _array),
    0xF0: (4, _array),
}
