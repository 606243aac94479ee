"""Groups as operators see them: how far they are, moving them, holding them up, and what they gave up."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import psycopg

from headwater.errors import PositionExpired, TopicError
from headwater.postgres.latest import latest, latest_sync
from headwater.postgres.statements import Statement, execute, execute_sync, fetch, fetch_sync
from headwater.topics import group_statements
from headwater.topics.append import append_sync, number, number_sync
from headwater.topics.group_statements import DeadLetter, Group, Lag, Place
from headwater.topics.message import Message
from headwater.topics.subscribe_settings import Start, start_faults
from headwater.topics.topic import NAME, Topic, find_sync

# By which those who read the topic in other groups know a message that is there for one of them.
REPLAY_HEADER: Final = "headwater-replay"
# More than that header takes: the longest name of a group, a partition and an offset.
_REPLAY_BYTES: Final = 300


def list_groups(connection: psycopg.Connection[Any], topic: str | None = None) -> list[Group]:
    """The groups of a topic, or of all."""
    if topic is not None:
        find_sync(connection, topic)
    return fetch_sync(connection, group_statements.find_groups(topic))


def find_group(connection: psycopg.Connection[Any], topic: str, group: str) -> Group:
    """The group of a name; raises TopicError if there is none."""
    find_sync(connection, topic)
    if not isinstance(group, str):
        raise TopicError(f"a group is named by a string, not by {group!r}; give its name")
    found = fetch_sync(connection, group_statements.find_groups(topic, group))
    if not found:
        raise TopicError(
            f"topic {topic!r} has no group {group!r}; run `headwater topics groups {topic}` to see which it has"
        )
    return found[0]


def drop_group(connection: psycopg.Connection[Any], topic: str, group: str) -> None:
    """Forget a group, with its dead letters; nothing is kept for it any more. Members that are still there fail."""
    execute_sync(connection, group_statements.drop_group(find_group(connection, topic, group).id))


def pause(connection: psycopg.Connection[Any], topic: str, group: str) -> None:
    """Have the members of a group get no more batches from their next poll on."""
    execute_sync(connection, group_statements.pause_group(find_group(connection, topic, group).id, is_paused=True))


def resume(connection: psycopg.Connection[Any], topic: str, group: str) -> None:
    execute_sync(connection, group_statements.pause_group(find_group(connection, topic, group).id, is_paused=False))


def seek(
    connection: psycopg.Connection[Any], topic: str, group: str, to: Start, partition: int | None = None
) -> dict[int, int]:
    """Have a group go on from elsewhere; returns the next offset of each partition.

    Its members begin there with their next batch, and commits of what they have in hand are refused. An offset that was
    removed raises PositionExpired; one that is beyond the end of all partitions, TopicError.
    """
    found, reader = find_sync(connection, topic), find_group(connection, topic, group)
    wanted = find_place(found, to, partition)
    number_sync(connection, found)
    with latest_sync(connection):
        fetch_sync(connection, group_statements.keep_topic(found.id))
        offsets = resolved(found, to, fetch_sync(connection, wanted), partition)
        execute_sync(connection, group_statements.seek(reader.id, offsets))
        execute_sync(connection, group_statements.forget_claims(reader.id, offsets))
    return offsets


def read_lag(connection: psycopg.Connection[Any], topic: str | None = None, group: str | None = None) -> list[Lag]:
    """How far groups are in each partition; the same as the view headwater.topic_lag."""
    return fetch_sync(connection, group_statements.read_lag(topic, group))


def list_dead(  # noqa: PLR0913 - of which group, and by name which of them
    connection: psycopg.Connection[Any],
    topic: str,
    group: str,
    *,
    partition: int | None = None,
    offset: int | None = None,
    limit: int = 1000,
) -> list[DeadLetter]:
    """What a group gave up, in the order of partitions and offsets."""
    reader = find_group(connection, topic, group)
    return fetch_sync(connection, group_statements.list_dead(reader.id, partition, offset, limit))


def replay_dead(
    connection: psycopg.Connection[Any], topic: str, group: str, *, partition: int | None = None, offset: int | None = None
) -> int:
    """Append dead letters to the topic again, and forget them; returns how many.

    They get new offsets, behind what came later, and all groups read them: the header `headwater-replay` says for which
    group they are, and where they stood, so that others can leave them out.
    """
    reader, found = find_group(connection, topic, group), find_sync(connection, topic)
    with connection.transaction():
        letters = fetch_sync(connection, group_statements.take_dead(reader.id, partition, offset))
        letters.sort(key=lambda letter: (letter.partition, letter.message_offset))
        # What the topic took once it takes again: our header is no part of what the application sends.
        roomier = replace(found, max_bytes=found.max_bytes + _REPLAY_BYTES)
        append_sync(connection, roomier, [_again(letter, reader) for letter in letters])
    return len(letters)


async def open_group(connection: psycopg.AsyncConnection[Any], topic: Topic, group: str, mode: str, start: Start) -> Group:
    """The group of a name; if there is none it is made, and begins at `start`."""
    if not isinstance(group, str) or not NAME.fullmatch(group):
        raise TopicError(
            f"{group!r} cannot be the name of a group; use up to 200 letters, digits, dots, dashes and underscores, and "
            "begin with a letter or a digit"
        )
    find = group_statements.find_groups(topic.name, group)
    if not await fetch(connection, find):
        wanted = find_place(topic, start)
        await number(connection, topic)
        async with latest(connection):
            await fetch(connection, group_statements.keep_topic(topic.id))
            offsets = resolved(topic, start, await fetch(connection, wanted))
            await execute(connection, group_statements.make_group(topic.id, group, mode, offsets))
    (found,) = await fetch(connection, find)
    if found.mode != mode:
        raise TopicError(
            f"group {group!r} of topic {topic.name!r} reads in mode {found.mode!r}; use that, or a group of another name"
        )
    return found


def resolved(topic: Topic, to: Start, places: Sequence[Place], partition: int | None = None) -> dict[int, int]:
    """The next offset of each partition, or an error that says what is there. Pure.

    An offset for all partitions means the end of those that are shorter.
    """
    if not places:
        raise TopicError(f"topic {topic.name!r} has {topic.partitions} partitions, and no partition {partition}")
    if (newest := max(place.next_offset for place in places)) < max(place.wanted for place in places):
        raise TopicError(f"offset {to} of topic {topic.name!r} is not there yet; the next is {newest}")
    for place in places:
        if place.wanted < place.first_offset:
            raise PositionExpired(f"partition {place.partition} of topic {topic.name!r}", place.wanted, place.first_offset)
    return {place.partition: min(place.wanted, place.next_offset) for place in places}


def find_place(topic: Topic, to: Start, partition: int | None = None) -> Statement[Place]:
    """Asks where that is in each partition, or in one; raises TopicError if it is no place."""
    for fault in start_faults(to):
        raise TopicError(fault)
    match to:
        case str():
            return group_statements.resolve_position(topic.id, to, None, None, partition)
        case datetime():
            return group_statements.resolve_position(topic.id, "time", None, to, partition)
        case int():
            return group_statements.resolve_position(topic.id, "offset", to, None, partition)


def _again(letter: DeadLetter, group: Group) -> Message:
    origin = f"{group.name}/{letter.partition}/{letter.message_offset}"
    return Message(letter.payload, letter.key, {**letter.headers, REPLAY_HEADER: origin})
