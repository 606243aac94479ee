"""Ids of messages: UUIDs of version 7, made where the event is, so that its writer knows them without asking the server."""

import os
import time
from uuid import UUID

_VERSION = 0x7 << 76
_VARIANT = 0b10 << 62
# Of the 74 bits beside time, version and variant, 42 count within a call and 32 are random for each id.
_COUNTER_BITS = 42
_LOW_BITS = 30


def make_ids(count: int) -> list[UUID]:
    """New ids in rising order: rows that one statement writes within a microsecond are told apart by them."""
    return ids_at(time.time_ns() // 1_000_000, os.urandom(5 + 4 * count), count)


def ids_at(milliseconds: int, noise: bytes, count: int) -> list[UUID]:
    """Ids of a time, from 5 random bytes for where to begin counting, and 4 for each id."""
    # One bit less than there is room for: so the count does not overflow, however many are wanted.
    start = int.from_bytes(noise[:5]) << (_COUNTER_BITS - 1 - 40)
    return [_id(milliseconds, start + place, int.from_bytes(noise[5 + 4 * place : 9 + 4 * place])) for place in range(count)]


def _id(milliseconds: int, counter: int, random: int) -> UUID:
    high, low = counter >> _LOW_BITS, counter & ((1 << _LOW_BITS) - 1)
    return UUID(int=milliseconds << 80 | _VERSION | high << 64 | _VARIANT | low << 32 | random)
