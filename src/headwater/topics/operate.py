"""Groups as operators see them: how far they are, moving them, holding them up, and what they gave up."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import psycopg

from headwater.errors import TopicError
from headwater.postgres.latest import latest, latest_sync
from headwater.postgres.statements import Statement, execute, execute_sync, fetch, fetch_sync
from headwater.topics import group_statements
from headwater.topics.append import append, append_sync, number, number_sync
from headwater.topics.group import find_place, resolved
from headwater.topics.group_statements import DeadLetter, Group, Lag
from headwater.topics.message import Message
from headwater.topics.subscribe_settings import Start
from headwater.topics.topic import Topic, find, find_sync, require_async, require_sync

# By which those who read the topic in other groups know a message that is there for one of them.
REPLAY_HEADER: Final = "headwater-replay"
# More than that header takes: the longest name of a group, a partition and an offset.
_REPLAY_BYTES: Final = 300


async def list_groups(connection: psycopg.AsyncConnection[Any], topic: str | None = None) -> list[Group]:
    """The groups of a topic, or of all."""
    require_async(connection, "list_groups")
    if topic is not None:
        await find(connection, topic)
    return await fetch(connection, group_statements.find_groups(topic))


def list_groups_sync(connection: psycopg.Connection[Any], topic: str | None = None) -> list[Group]:
    """`list_groups` for a connection that is not async."""
    require_sync(connection, "list_groups")
    if topic is not None:
        find_sync(connection, topic)
    return fetch_sync(connection, group_statements.find_groups(topic))


async def find_group(connection: psycopg.AsyncConnection[Any], topic: str, group: str) -> Group:
    """The group of a name; raises TopicError if there is none."""
    _, found = await _find(connection, topic, group, "find_group")
    return found


def find_group_sync(connection: psycopg.Connection[Any], topic: str, group: str) -> Group:
    """`find_group` for a connection that is not async."""
    _, found = _find_sync(connection, topic, group, "find_group")
    return found


async def drop_group(connection: psycopg.AsyncConnection[Any], topic: str, group: str) -> None:
    """Forget a group, with its dead letters; nothing is kept for it any more. Members that are still there fail."""
    _, found = await _find(connection, topic, group, "drop_group")
    await execute(connection, group_statements.drop_group(found.id))


def drop_group_sync(connection: psycopg.Connection[Any], topic: str, group: str) -> None:
    """`drop_group` for a connection that is not async."""
    _, found = _find_sync(connection, topic, group, "drop_group")
    execute_sync(connection, group_statements.drop_group(found.id))


async def pause(connection: psycopg.AsyncConnection[Any], topic: str, group: str) -> None:
    """Have the members of a group get no more batches from their next poll on."""
    _, found = await _find(connection, topic, group, "pause")
    await execute(connection, group_statements.pause_group(found.id, is_paused=True))


def pause_sync(connection: psycopg.Connection[Any], topic: str, group: str) -> None:
    """`pause` for a connection that is not async."""
    _, found = _find_sync(connection, topic, group, "pause")
    execute_sync(connection, group_statements.pause_group(found.id, is_paused=True))


async def resume(connection: psycopg.AsyncConnection[Any], topic: str, group: str) -> None:
    """Have the members of a group go on."""
    _, found = await _find(connection, topic, group, "resume")
    await execute(connection, group_statements.pause_group(found.id, is_paused=False))


def resume_sync(connection: psycopg.Connection[Any], topic: str, group: str) -> None:
    """`resume` for a connection that is not async."""
    _, found = _find_sync(connection, topic, group, "resume")
    execute_sync(connection, group_statements.pause_group(found.id, is_paused=False))


async def seek(
    connection: psycopg.AsyncConnection[Any], topic: str, group: str, to: Start, partition: int | None = None
) -> dict[int, int]:
    """Have a group go on from elsewhere; returns the next offset of each partition.

    Its members begin there with their next batch, and commits of what they have in hand are refused. An offset that was
    removed raises PositionExpired; one that is beyond the end of all partitions, TopicError. In a transaction of the caller
    it counts from the commit on, and until then nothing of the topic can be given offsets or be removed.
    """
    found, reader = await _find(connection, topic, group, "seek")
    wanted = find_place(found, to, partition)
    await number(connection, found)
    async with latest(connection):
        await fetch(connection, group_statements.keep_topic(found.id))
        offsets = resolved(found, to, await fetch(connection, wanted), partition)
        await execute(connection, group_statements.seek(reader.id, offsets))
        await execute(connection, group_statements.forget_claims(reader.id, offsets))
    return offsets


def seek_sync(
    connection: psycopg.Connection[Any], topic: str, group: str, to: Start, partition: int | None = None
) -> dict[int, int]:
    """`seek` for a connection that is not async."""
    found, reader = _find_sync(connection, topic, group, "seek")
    wanted = find_place(found, to, partition)
    number_sync(connection, found)
    with latest_sync(connection):
        fetch_sync(connection, group_statements.keep_topic(found.id))
        offsets = resolved(found, to, fetch_sync(connection, wanted), partition)
        execute_sync(connection, group_statements.seek(reader.id, offsets))
        execute_sync(connection, group_statements.forget_claims(reader.id, offsets))
    return offsets


async def read_lag(
    connection: psycopg.AsyncConnection[Any], topic: str | None = None, group: str | None = None
) -> list[Lag]:
    """How far groups are in each partition; the same as the view headwater.topic_lag."""
    require_async(connection, "read_lag")
    return await fetch(connection, group_statements.read_lag(topic, group))


def read_lag_sync(connection: psycopg.Connection[Any], topic: str | None = None, group: str | None = None) -> list[Lag]:
    """`read_lag` for a connection that is not async."""
    require_sync(connection, "read_lag")
    return fetch_sync(connection, group_statements.read_lag(topic, group))


async def list_dead(  # noqa: PLR0913 - of which group, and by name which of them
    connection: psycopg.AsyncConnection[Any],
    topic: str,
    group: str,
    *,
    partition: int | None = None,
    offset: int | None = None,
    limit: int = 1000,
) -> list[DeadLetter]:
    """What a group gave up, in the order of partitions and offsets."""
    _, reader = await _find(connection, topic, group, "list_dead")
    return await fetch(connection, group_statements.list_dead(reader.id, partition, offset, limit))


def list_dead_sync(  # noqa: PLR0913 - as above
    connection: psycopg.Connection[Any],
    topic: str,
    group: str,
    *,
    partition: int | None = None,
    offset: int | None = None,
    limit: int = 1000,
) -> list[DeadLetter]:
    """`list_dead` for a connection that is not async."""
    _, reader = _find_sync(connection, topic, group, "list_dead")
    return fetch_sync(connection, group_statements.list_dead(reader.id, partition, offset, limit))


async def replay_dead(
    connection: psycopg.AsyncConnection[Any],
    topic: str,
    group: str,
    *,
    partition: int | None = None,
    offset: int | None = None,
) -> int:
    """Append dead letters to the topic again, and forget them; returns how many.

    They get new offsets, behind what came later, and all groups read them: the header `headwater-replay` says for which
    group they are, and where they stood, so that others can leave them out.
    """
    found, reader = await _find(connection, topic, group, "replay_dead")
    async with connection.transaction():
        letters = await fetch(connection, group_statements.take_dead(reader.id, partition, offset))
        await append(connection, _roomier(found), _again(letters, reader))
    return len(letters)


def replay_dead_sync(
    connection: psycopg.Connection[Any], topic: str, group: str, *, partition: int | None = None, offset: int | None = None
) -> int:
    """`replay_dead` for a connection that is not async."""
    found, reader = _find_sync(connection, topic, group, "replay_dead")
    with connection.transaction():
        letters = fetch_sync(connection, group_statements.take_dead(reader.id, partition, offset))
        append_sync(connection, _roomier(found), _again(letters, reader))
    return len(letters)


async def _find(connection: psycopg.AsyncConnection[Any], topic: str, group: str, function: str) -> tuple[Topic, Group]:
    require_async(connection, function)
    return await find(connection, topic), _found(topic, group, await fetch(connection, _sought(topic, group)))


def _find_sync(connection: psycopg.Connection[Any], topic: str, group: str, function: str) -> tuple[Topic, Group]:
    require_sync(connection, function)
    return find_sync(connection, topic), _found(topic, group, fetch_sync(connection, _sought(topic, group)))


def _sought(topic: str, group: str) -> Statement[Group]:
    """By its name, never without one: that would be all groups."""
    if not isinstance(group, str):
        raise TopicError(f"a group is named by a string, not by {group!r}; give its name")
    return group_statements.find_groups(topic, group)


def _found(topic: str, group: str, found: Sequence[Group]) -> Group:
    if not found:
        raise TopicError(
            f"topic {topic!r} has no group {group!r}; run `headwater topics groups {topic}` to see which it has"
        )
    return found[0]


def _roomier(topic: Topic) -> Topic:
    """What the topic took once it takes again: our header is no part of what the application sends."""
    return replace(topic, max_bytes=topic.max_bytes + _REPLAY_BYTES)


def _again(letters: Iterable[DeadLetter], group: Group) -> list[Message]:
    """In the order in which they stood."""
    ordered = sorted(letters, key=lambda letter: (letter.partition, letter.message_offset))
    return [
        Message(
            letter.payload,
            letter.key,
            {**letter.headers, REPLAY_HEADER: f"{group.name}/{letter.partition}/{letter.message_offset}"},
        )
        for letter in ordered
    ]
