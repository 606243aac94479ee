"""Appending in a transaction of the application: what is appended is there if and only if it commits.

Rows are staged, and get their offsets after the commit, in the order of commits; so no two transactions wait for each other.
Whoever reads the topic next, or `number`, gives them. `docs/decisions` has the measurements.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import psycopg

from headwater.errors import TopicError
from headwater.postgres.latest import latest, latest_sync
from headwater.postgres.statements import Statement, fetch, fetch_sync
from headwater.topics import statements
from headwater.topics.encoded import Encoded
from headwater.topics.frame import Framed, encode_frame
from headwater.topics.message import Message, encode_message, partition_of
from headwater.topics.topic import Topic, find, find_sync, require_async, require_sync

# Rows of this size cost the least to write and to read; a larger message has one to itself.
FRAME_BYTES: Final = 128 * 1024


async def append(
    connection: psycopg.AsyncConnection[Any], topic: str | Topic, messages: Iterable[Message], *, rings: bool = True
) -> None:
    """Append messages in the transaction of the connection; what cannot be appended raises TopicError before any SQL is run.

    With `rings` those who wait for the topic are woken by the commit.
    """
    require_async(connection, "append")
    found = topic if isinstance(topic, Topic) else await find(connection, topic)
    if encoded := encode_messages(found, messages):
        await fetch(connection, _staging(found, encoded, rings=rings))


def append_sync(
    connection: psycopg.Connection[Any], topic: str | Topic, messages: Iterable[Message], *, rings: bool = True
) -> None:
    """`append` for a connection that is not async."""
    require_sync(connection, "append")
    found = topic if isinstance(topic, Topic) else find_sync(connection, topic)
    if encoded := encode_messages(found, messages):
        fetch_sync(connection, _staging(found, encoded, rings=rings))


async def number(connection: psycopg.AsyncConnection[Any], topic: Topic) -> int:
    """Give offsets to what was appended and committed; returns for how many appends. Writes only if there is something."""
    require_async(connection, "number")
    numbered = 0
    while (await fetch(connection, statements.has_staged(topic.id)))[0]:
        async with latest(connection):
            (done,) = await fetch(connection, statements.number_staged(topic.id))
        numbered += done
        # Somebody else is at it.
        if not done:
            break
    return numbered


def number_sync(connection: psycopg.Connection[Any], topic: Topic) -> int:
    """`number` for a connection that is not async."""
    require_sync(connection, "number")
    numbered = 0
    while fetch_sync(connection, statements.has_staged(topic.id))[0]:
        with latest_sync(connection):
            (done,) = fetch_sync(connection, statements.number_staged(topic.id))
        numbered += done
        if not done:
            break
    return numbered


def frame_messages(topic: Topic, messages: Encoded, unkeyed: int) -> tuple[list[int], list[Framed]]:
    """The partition of each frame, and the frames; messages of a partition keep their order. Pure.

    Messages without a key are for the partition `unkeyed`.
    """
    partitions: list[int] = []
    frames: list[Framed] = []
    for partition, those in _by_partition(topic, messages, unkeyed):
        for part in those.portions(FRAME_BYTES):
            partitions.append(partition)
            frames.append(encode_frame(part, compresses=topic.compresses))
    return partitions, frames


def partitions_for(topic: Topic, messages: Encoded, unkeyed: int) -> list[int]:
    """Where each message goes."""
    if messages.keys is None:
        return [unkeyed] * len(messages)
    return [unkeyed if key is None else partition_of(key, topic.partitions) for key in messages.keys]


def encode_messages(topic: Topic, messages: Iterable[Message]) -> Encoded:
    """The messages as they are written, or TopicError."""
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise TopicError(f"messages are given as a list, not as a {type(messages).__name__}; write [Message(...)]")
    given = list(messages)
    if not given:
        return Encoded([], [])
    return _encode_bare(given, topic.max_bytes) or Encoded.of(encode_message(one, topic.max_bytes) for one in given)


def _encode_bare(messages: Sequence[Message], max_bytes: int) -> Encoded | None:
    """Messages of bytes and nothing else, all looked at together in half of the time; None if some are not such."""
    if set(map(type, messages)) != {Message}:
        return None
    payloads, *others = zip(*messages, strict=True)
    if set(map(type, payloads)) != {bytes} or any(column.count(None) < len(column) for column in others):
        return None
    sizes = list(map(len, payloads))
    return Encoded(payloads, sizes) if max(sizes) <= max_bytes else None


def _by_partition(topic: Topic, messages: Encoded, unkeyed: int) -> Iterator[tuple[int, Encoded]]:
    if messages.keys is None:
        yield unkeyed, messages
        return
    places: dict[int, list[int]] = {}
    for place, partition in enumerate(partitions_for(topic, messages, unkeyed)):
        places.setdefault(partition, []).append(place)
    for partition in sorted(places):
        yield partition, messages.picked(places[partition])


def _staging(topic: Topic, messages: Encoded, *, rings: bool) -> Statement[bool]:
    # All without a key together, in a partition by chance, so that they share frames.
    partitions, frames = frame_messages(topic, messages, random.randrange(topic.partitions))
    return statements.stage_frames(topic.id, partitions, frames, rings=rings)
