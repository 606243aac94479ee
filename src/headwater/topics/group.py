"""Groups: found or made when a member comes, and the places in a topic that they begin at, or are moved to."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import psycopg

from headwater.errors import PositionExpired, TopicError
from headwater.postgres.latest import latest
from headwater.postgres.statements import Statement, execute, fetch
from headwater.topics import group_statements
from headwater.topics.append import number
from headwater.topics.group_statements import Group, Place
from headwater.topics.subscribe_settings import Start, start_faults
from headwater.topics.topic import NAME, Topic


async def open_group(connection: psycopg.AsyncConnection[Any], topic: Topic, group: str, mode: str, start: Start) -> Group:
    """The group of a name; if there is none it is made, and begins at `start`."""
    if not isinstance(group, str) or not NAME.fullmatch(group):
        raise TopicError(
            f"{group!r} cannot be the name of a group; use up to 200 letters, digits, dots, dashes and underscores, and "
            "begin with a letter or a digit"
        )
    sought = group_statements.find_groups(topic.name, group)
    if not await fetch(connection, sought):
        wanted = find_place(topic, start)
        await number(connection, topic)
        async with latest(connection):
            await fetch(connection, group_statements.keep_topic(topic.id))
            offsets = resolved(topic, start, await fetch(connection, wanted))
            await execute(connection, group_statements.make_group(topic.id, group, mode, offsets))
    (found,) = await fetch(connection, sought)
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
