"""The SQL of the source: statements with their parameters and rows named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg import sql

from headwater.postgres.statements import Query, Statement, load

SQL: Final = load("headwater.spark.sources.topic")


@dataclass(frozen=True, slots=True)
class End:
    """Up to where a partition is read next, and when the last of that was appended."""

    partition: int
    next_offset: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class HeldGroup:
    id: int
    mode: str
    has_members: bool


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a group is in a partition; who has another epoch may not move it."""

    partition: int
    next_offset: int
    epoch: int


def find_ends(topic_id: int, starts: Mapping[int, int], *, bytes: int, frames: int) -> Statement[End]:
    """`bytes` are those of each partition, and `frames` how many are looked at."""
    return _of_topic("find_ends", topic_id).bind(
        End, partitions=list(starts), offsets=list(starts.values()), bytes=bytes, frames=frames
    )


def find_cuts(topic_id: int, partition: int, first: int, until: int, piece: int) -> Statement[int]:
    return _of_topic("find_cuts", topic_id).bind(int, partition=partition, first=first, until=until, piece=piece)


def read_range(topic_id: int, partition: int, first: int, until: int) -> str:
    """A text, for ADBC knows no parameters of psycopg's."""
    place = {"partition": partition, "first": first, "until": until}
    query = _of_topic("read_range", topic_id).compose(**{name: sql.Literal(value) for name, value in place.items()})
    return query.query.as_string()


def make_group(topic_id: int, name: str) -> Statement[None]:
    return SQL["make_group"].bind(type(None), topic_id=topic_id, name=name)


def hold_group(topic_id: int, name: str) -> Statement[HeldGroup]:
    return SQL["hold_group"].bind(HeldGroup, topic_id=topic_id, name=name)


def list_cursors(topic_id: int, name: str) -> Statement[Cursor]:
    return SQL["list_cursors"].bind(Cursor, topic_id=topic_id, name=name)


def take_cursors(group_id: int, starts: Mapping[int, int]) -> Statement[Cursor]:
    return SQL["take_cursors"].bind(Cursor, group_id=group_id, partitions=list(starts), offsets=list(starts.values()))


def move_cursors(group_id: int, cursors: Sequence[Cursor]) -> Statement[bool]:
    """Whether all were still ours, and so were moved."""
    return SQL["move_cursors"].bind(
        bool,
        group_id=group_id,
        partitions=[one.partition for one in cursors],
        offsets=[one.next_offset for one in cursors],
        epochs=[one.epoch for one in cursors],
    )


def is_group_paused(group_id: int) -> Statement[bool]:
    return SQL["is_group_paused"].bind(bool, group_id=group_id)


def _of_topic(name: str, topic_id: int) -> Query:
    return Query(name, SQL[name].text.replace("topic_log_0", f"topic_log_{int(topic_id)}"))
