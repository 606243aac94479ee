"""Frames: the bytes of one row of a topic's log, with one or many messages that have consecutive offsets. Pure.

Columns rather than records, so that numpy and Arrow read them as they are: a byte of flags, the lengths of all keys if there
are any (-1 for none), of all payloads, and of all headers if there are any, as little-endian 32-bit integers; then the keys,
the payloads and the headers, each end to end. Keys are UTF-8, headers JSON objects, and empty where there are none.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise, repeat
from typing import Final, cast

import numpy as np
import pyarrow as pa

from headwater.topics.encoded import Encoded
from headwater.topics.message import Message

# What the column `codec` says. What is compressed has its length before it, and nothing is that does not get smaller.
PLAIN: Final = 0
ZSTD: Final = 1

# What the flags say.
HAS_KEYS: Final = 1
HAS_HEADERS: Final = 2
_ZSTD: Final = pa.Codec("zstd", compression_level=3)
# A message of what it consists of, by neither of the two calls of Python that its class takes for that.
_MAKE: Final = cast("Callable[[tuple[object, ...]], Message]", partial(tuple.__new__, Message))


@dataclass(frozen=True, slots=True)
class Framed:
    """The bytes of a frame as the log has them."""

    count: int
    codec: int
    frame: bytes


def encode_frame(messages: Encoded, *, compresses: bool) -> Framed:
    keys, headers = messages.keys, messages.headers
    lengths, values = list(map(len, messages.payloads)), list(messages.payloads)
    if keys is not None:
        lengths[:0] = [-1 if key is None else len(key) for key in keys]
        values[:0] = filter(None, keys)
    if headers is not None:
        lengths += map(len, headers)
        values += headers
    flags = (keys is not None) * HAS_KEYS | (headers is not None) * HAS_HEADERS
    head = bytes([flags]) + np.array(lengths, "<i4").tobytes()
    return pack(len(messages), b"".join([head, *values]), compresses=compresses)


def pack(count: int, plain: bytes, *, compresses: bool) -> Framed:
    """A frame as it is written."""
    if compresses:
        packed = len(plain).to_bytes(4, "little") + _ZSTD.compress(plain, asbytes=True)
        if len(packed) < len(plain):
            return Framed(count, ZSTD, packed)
    return Framed(count, PLAIN, plain)


def unpack(codec: int, frame: bytes | memoryview) -> memoryview:
    """What was packed."""
    packed = memoryview(frame)
    if codec == PLAIN:
        return packed
    return memoryview(_ZSTD.decompress(packed[4:], int.from_bytes(packed[:4], "little"), asbytes=True))


def read_messages(
    framed: Framed, partition: int, last_offset: int, created_at: datetime, offsets: range | None = None
) -> list[Message]:
    """The messages of a row of the log, or those of them that have some offsets."""
    first = last_offset - framed.count + 1
    begin, end = 0, framed.count
    if offsets is not None:
        begin, end = max(begin, offsets.start - first), min(end, offsets.stop - first)
    # Slices of bytes are made in a third of the time that those of a memoryview take.
    plain = framed.frame if framed.codec == PLAIN else unpack(framed.codec, framed.frame).tobytes()
    has_keys, has_headers = bool(plain[0] & HAS_KEYS), bool(plain[0] & HAS_HEADERS)
    lengths = np.frombuffer(plain, "<i4", framed.count * (1 + has_keys + has_headers), 1)
    # All columns stand end to end, and so do the values in each.
    bounds = np.concatenate(([1 + lengths.nbytes], np.maximum(lengths, 0))).cumsum().tolist()

    def cut(column: int) -> list[bytes]:
        at = column * framed.count
        return [plain[one:next_one] for one, next_one in pairwise(bounds[at + begin : at + end + 1])]

    payloads = cut(has_keys)
    keys = (
        (None if length < 0 else key.decode() for key, length in zip(cut(0), lengths[begin:end].tolist(), strict=True))
        if has_keys
        else repeat(None)
    )
    headers: list[object] = (
        [json.loads(header) if header else {} for header in cut(1 + has_keys)] if has_headers else [{} for _ in payloads]
    )
    places = range(first + begin, first + end)
    # The repeats have no end.
    return list(map(_MAKE, zip(payloads, keys, headers, repeat(partition), places, repeat(created_at), strict=False)))
