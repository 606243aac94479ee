"""Publishes of AMQP 0.9.1 as one buffer, byte by byte those that pika builds one at a time: no Python runs per message.

Reference: https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf, sections 2.3.5 and 4.2
"""

import struct
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.brokers.columns import FEW, Integers, lengths, starts

_END = b"\xce"
_METHOD, _HEADER, _BODY = 1, 2, 3
_BASIC, _PUBLISH = 60, 40
_HEAD = struct.Struct(">BHI")
# What a frame has besides its content: the head, and the end.
FRAME_BYTES = _HEAD.size + len(_END)
# The head of a content header with class, weight and size of the body, and the end of that frame with the head of a body.
_HEADER_HEAD = np.dtype(
    [("kind", "u1"), ("channel", ">u2"), ("size", ">u4"), ("class", ">u2"), ("weight", ">u2"), ("body", ">u8")]
)
_HEADER_START = struct.Struct(">BHIHHQ")
_BODY_HEAD = np.dtype([("end", "u1"), ("kind", "u1"), ("channel", ">u2"), ("size", ">u4")])
# Of a content header, in front of the properties: class, weight and size of the body.
HEADER_BYTES = _HEADER_HEAD.itemsize - _HEAD.size


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Messages for one exchange, in order; `properties` are those of a content header with the flags in front, encoded."""

    exchange: str
    is_mandatory: bool
    keys: pa.Array
    properties: pa.Array
    payloads: pa.Array

    def __len__(self) -> int:
        return len(self.keys)

    def sizes(self) -> Integers:
        """What each takes on its way, but for the heads of frames."""
        return lengths(self.keys) + lengths(self.properties) + lengths(self.payloads)

    def part(self, start: int, end: int) -> "Outgoing":
        columns = (self.keys, self.properties, self.payloads)
        return Outgoing(self.exchange, self.is_mandatory, *(column.slice(start, end - start) for column in columns))

    def chosen(self, places: Integers) -> "Outgoing":
        """Some of the messages, in the order of the places."""
        if len(places) and places[-1] - places[0] + 1 == len(places):
            return self.part(int(places[0]), int(places[-1]) + 1)
        index = pa.array(places)
        columns = (self.keys, self.properties, self.payloads)
        return Outgoing(self.exchange, self.is_mandatory, *(column.take(index) for column in columns))


@dataclass(frozen=True, slots=True)
class Frames:
    """Publishes, one after the other, and where each begins; the last offset is the end."""

    data: memoryview
    offsets: Integers

    def part(self, start: int, end: int) -> memoryview:
        return self.data[self.offsets[start] : self.offsets[end]]


def build_frames(outgoing: Outgoing, channel: int, frame_max: int) -> Frames:
    """Method, content header and body of each message; bodies larger than a frame are cut."""
    sizes, most = lengths(outgoing.payloads), frame_max - FRAME_BYTES
    if len(sizes) <= FEW and sizes.min() > 0 and sizes.max() <= most:
        return _build_few(outgoing, channel)
    payloads = _cut(outgoing.payloads.cast(pa.large_binary()), sizes, channel, most)
    body_heads = _body_heads(np.minimum(sizes, most), channel)
    ends: pa.Array | pa.Scalar = constant(_END)
    if (is_empty := sizes == 0).any():
        # An empty body is no frame at all: only the end of the frame before it is left.
        body_heads = pc.if_else(pa.array(is_empty), constant(_END), body_heads)
        ends = pc.if_else(pa.array(is_empty), constant(b""), ends)
    joined = pc.binary_join_element_wise(
        _methods(outgoing, channel),
        _header_heads(sizes, lengths(outgoing.properties), channel),
        outgoing.properties,
        body_heads,
        payloads,
        ends,
        constant(b""),
    )
    return Frames(memoryview(joined.buffers()[2]), starts(joined))


def _build_few(outgoing: Outgoing, channel: int) -> Frames:
    """The same one by one, for bodies of one frame."""
    methods: dict[str, bytes] = {}
    publishes = []
    columns = (column.to_pylist() for column in (outgoing.keys, outgoing.properties, outgoing.payloads))
    for key, properties, payload in zip(*columns, strict=True):
        method = methods.get(key) or methods.setdefault(key, _method(outgoing, channel, key))
        header = _HEADER_START.pack(_HEADER, channel, len(properties) + HEADER_BYTES, _BASIC, 0, len(payload))
        publishes.append(
            b"".join((method, header, properties, _END, _HEAD.pack(_BODY, channel, len(payload)), payload, _END))
        )
    ends = np.cumsum([0, *map(len, publishes)])
    return Frames(memoryview(b"".join(publishes)), ends)


def short_strings(values: pa.Array) -> pa.Array:
    """Texts of at most 255 bytes, with their length in front."""
    return pc.binary_join_element_wise(numbers(lengths(values), ">u1"), values.cast(pa.large_binary()), constant(b""))


def long_strings(values: pa.Array) -> pa.Array:
    """Texts with their length in four bytes in front."""
    return pc.binary_join_element_wise(numbers(lengths(values), ">u4"), values.cast(pa.large_binary()), constant(b""))


def numbers(values: Integers, kind: str) -> pa.Array:
    """Integers as bytes, in numpy's word for how."""
    return _fixed(values.astype(kind))


@cache
def constant(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.large_binary())


def _methods(outgoing: Outgoing, channel: int) -> pa.Array:
    """The method of each message; there are as many as there are routing keys."""
    encoded = outgoing.keys.dictionary_encode()
    frames = [_method(outgoing, channel, key) for key in encoded.dictionary.to_pylist()]
    return pa.array(frames, pa.large_binary()).take(encoded.indices)


def _method(outgoing: Outgoing, channel: int, key: str) -> bytes:
    exchange, routing_key = outgoing.exchange.encode(), key.encode()
    content = b"%b%b%b%b%b%b" % (
        struct.pack(">HHH", _BASIC, _PUBLISH, 0),
        bytes([len(exchange)]),
        exchange,
        bytes([len(routing_key)]),
        routing_key,
        bytes([outgoing.is_mandatory]),
    )
    return _HEAD.pack(_METHOD, channel, len(content)) + content + _END


def _header_heads(bodies: Integers, properties: Integers, channel: int) -> pa.Array:
    heads = np.zeros(len(bodies), _HEADER_HEAD)
    heads["kind"], heads["channel"], heads["class"] = _HEADER, channel, _BASIC
    heads["size"], heads["body"] = properties + HEADER_BYTES, bodies
    return _fixed(heads)


def _body_heads(sizes: Integers, channel: int) -> pa.Array:
    heads = np.zeros(len(sizes), _BODY_HEAD)
    heads["end"], heads["kind"], heads["channel"], heads["size"] = _END[0], _BODY, channel, sizes
    return _fixed(heads)


def _cut(payloads: pa.Array, sizes: Integers, channel: int, most: int) -> pa.Array:
    """Payloads that are too large for a frame, with the end of a frame and the head of the next where each is cut."""
    large = np.flatnonzero(sizes > most)
    if not len(large):
        return payloads
    values = payloads.to_pylist()
    for place in large.tolist():
        payload = memoryview(values[place])
        pieces = [payload[start : start + most] for start in range(0, len(payload), most)]
        rest = [part for piece in pieces[1:] for part in (_END, _HEAD.pack(_BODY, channel, len(piece)), piece)]
        values[place] = b"".join([pieces[0], *rest])
    return pa.array(values, pa.large_binary())


def _fixed(values: npt.NDArray[np.generic]) -> pa.Array:
    """The bytes of each element, as Arrow has them."""
    width, count = values.dtype.itemsize, len(values)
    offsets = np.arange(count + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values.tobytes())]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers)
