"""Packets: how a message of any size travels as messages of bounded size, and how it is put together again.

A packet begins with its number in 16 bits; the first one goes on with the length of the whole message in 32. Both are
big-endian. The packets of a message are published to the same subject, one behind the other.
"""

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BrokerError

Ints: TypeAlias = npt.NDArray[np.int64]

_FIRST = struct.Struct(">HI")
_NEXT = struct.Struct(">H")
FIRST_BYTES: Final = _FIRST.size
MOST_PACKETS: Final = 1 << 16
MOST_BYTES: Final = (1 << 32) - 1


def packets(message: bytes, chunk: int) -> list[bytes]:
    """The packets of a message, with at most `chunk` bytes of it in each.

    A message that is an exact multiple of `chunk` has a last packet without content, as Creek counts them.
    """
    size = len(message)
    count = 1 + size // chunk
    if count > MOST_PACKETS or size > MOST_BYTES:
        raise BrokerError(
            f"a message of {size} bytes takes more than {MOST_PACKETS} packets of {chunk} bytes; raise max_payload of the "
            "server"
        )
    heads = [_FIRST.pack(0, size), *(_NEXT.pack(number) for number in range(1, count))]
    return [head + message[number * chunk : (number + 1) * chunk] for number, head in enumerate(heads)]


@dataclass(frozen=True, slots=True)
class Packets:
    """The packets of many messages in order: of each, the index of its message, and its number in that message."""

    packets: pa.Array
    messages: Ints
    numbers: Ints


def frame(messages: pa.Array, chunk: int) -> Packets:
    """The packets of all messages; raises `BrokerError` if one of them is beyond what packets can tell."""
    sizes = _sizes(messages)
    large = np.flatnonzero(sizes >= chunk)
    if not len(large):
        return Packets(frame_all(messages), np.arange(len(messages)), np.zeros(len(messages), np.int64))
    parts, indices, numbers, start = [], [], [], 0
    for index in [*large.tolist(), len(messages)]:
        between = messages.slice(start, index - start)
        parts.append(frame_all(between))
        indices.append(np.arange(start, index))
        numbers.append(np.zeros(index - start, np.int64))
        if index < len(messages):
            several = packets(messages[index].as_py(), chunk)
            parts.append(pa.array(several, messages.type))
            indices.append(np.full(len(several), index))
            numbers.append(np.arange(len(several)))
        start = index + 1
    return Packets(pa.concat_arrays(parts), np.concatenate(indices), np.concatenate(numbers))


def frame_all(messages: pa.Array) -> pa.Array:
    """A packet for each message, all of which are small enough for one."""
    count = len(messages)
    heads = np.zeros((count, FIRST_BYTES), np.uint8)
    heads[:, 2:] = _sizes(messages).astype(">u4").view(np.uint8).reshape(count, 4)
    wide = pa.types.is_large_binary(messages.type)
    offsets = np.arange(0, FIRST_BYTES * (count + 1), FIRST_BYTES, dtype=np.int64 if wide else np.int32)
    framed = pa.Array.from_buffers(messages.type, count, [None, pa.py_buffer(offsets), pa.py_buffer(heads)])
    return pc.binary_join_element_wise(framed, messages, pa.scalar(b"", messages.type))


def _sizes(messages: pa.Array) -> Ints:
    sizes: Ints = pc.binary_length(messages).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


@dataclass(slots=True)
class _Partial:
    size: int
    parts: list[bytes]
    held: int
    next: int


class Reassembly:
    """Puts messages together again, for any number of subjects at once.

    A first packet always begins a message anew; whatever of another one was there is given up, as when a publisher died
    half-way and sent it again. What has no place (a continuation without its beginning, or with a number missing before it,
    more bytes than announced) is left out and counted in `skipped`; the empty last packet of a full one is part of the rule.
    """

    def __init__(self) -> None:
        self._partial: dict[str, _Partial] = {}
        self._ended: dict[str, int] = {}
        self.skipped = 0

    def add(self, subject: str, packet: bytes) -> bytes | None:
        """The message that this packet completes, if it does."""
        ended = self._ended.pop(subject, None)
        number = int.from_bytes(packet[:2]) if len(packet) >= _NEXT.size else -1
        if number == 0 and len(packet) >= FIRST_BYTES:
            self.skipped += self._partial.pop(subject, None) is not None
            return self._held(subject, _Partial(_FIRST.unpack_from(packet)[1], [], 0, 0), packet[FIRST_BYTES:])
        if ended == number and len(packet) == _NEXT.size:
            return None
        partial = self._partial.pop(subject, None)
        if partial is None or number != partial.next:
            self.skipped += 1
            return None
        return self._held(subject, partial, packet[_NEXT.size :])

    def is_open(self, subject: str) -> bool:
        """Whether packets of a message have come, and more of them are to come."""
        return subject in self._partial

    def _held(self, subject: str, partial: _Partial, content: bytes) -> bytes | None:
        partial.parts.append(content)
        partial.held += len(content)
        partial.next += 1
        if partial.held < partial.size:
            self._partial[subject] = partial
            return None
        if partial.held > partial.size:
            self.skipped += 1
            return None
        self._ended[subject] = partial.next
        return content if len(partial.parts) == 1 else b"".join(partial.parts)
