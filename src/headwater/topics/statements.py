"""The SQL of topics: statements with their parameters and rows named."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Final

from headwater.postgres.statements import Query, Statement, load
from headwater.topics.frame import Framed

SQL: Final = load("headwater.topics")


@dataclass(frozen=True, slots=True)
class TopicRow:
    id: int
    name: str
    partitions: int
    compression: str
    retention_seconds: float | None
    retention_bytes: int | None
    max_bytes: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Bounds:
    """The oldest offset of a partition, and the next to be given out."""

    partition: int
    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class LogRow:
    """A frame where it stands."""

    partition: int
    last_offset: int
    count: int
    codec: int
    created_at: datetime
    frame: bytes


def create_topic(  # noqa: PLR0913 - the columns of a topic
    name: str,
    partitions: int,
    compression: str,
    retention_seconds: float | None,
    retention_bytes: int | None,
    max_bytes: int,
) -> Statement[int]:
    return SQL["create_topic"].bind(
        int,
        name=name,
        partitions=partitions,
        compression=compression,
        retention_seconds=retention_seconds,
        retention_bytes=retention_bytes,
        max_bytes=max_bytes,
    )


def add_partitions(topic_id: int, partitions: int) -> Statement[int]:
    return SQL["add_partitions"].bind(int, topic_id=topic_id, partitions=partitions)


def find_topics(name: str | None = None) -> Statement[TopicRow]:
    return SQL["find_topics"].bind(TopicRow, name=name)


def stage_frames(topic_id: int, partitions: Sequence[int], frames: Sequence[Framed], *, rings: bool) -> Statement[bool]:
    return SQL["stage_frames"].bind(bool, topic_id=topic_id, rings=rings, **frame_columns(partitions, frames))


def hold_partitions(topic_id: int, partitions: Iterable[int]) -> Statement[bool]:
    return SQL["hold_partitions"].bind(bool, topic_id=topic_id, partitions=sorted(set(partitions)))


def append_held(topic_id: int, partitions: Sequence[int], frames: Sequence[Framed]) -> Statement[Sequence[int]]:
    """Gives one row: the first offset of each frame."""
    return of_topic(SQL["append_held"], topic_id).bind(list, **frame_columns(partitions, frames))


def has_staged(topic_id: int) -> Statement[bool]:
    return SQL["has_staged"].bind(bool, topic_id=topic_id)


def number_staged(topic_id: int) -> Statement[int]:
    return SQL["number_staged"].bind(int, topic_id=topic_id)


def ring(topic_id: int) -> Statement[bool]:
    return SQL["ring"].bind(bool, topic_id=topic_id)


def read_bounds(topic_id: int) -> Statement[Bounds]:
    return SQL["read_bounds"].bind(Bounds, topic_id=topic_id)


def read_frames(topic_id: int, partitions: Sequence[int], offsets: Sequence[int], limit: int) -> Statement[LogRow]:
    """From an offset of each partition on, at most so many of each."""
    return of_topic(SQL["read_frames"], topic_id).bind(
        LogRow, partitions=list(partitions), offsets=list(offsets), limit=limit
    )


@cache
def of_topic(query: Query, topic_id: int) -> Query:
    """With the log of a topic in place of `topic_log_0`."""
    return Query(query.name, query.text.replace("topic_log_0", f"topic_log_{int(topic_id)}"))


def frame_columns(partitions: Sequence[int], frames: Sequence[Framed]) -> dict[str, object]:
    return {
        "partitions": list(partitions),
        "counts": [one.count for one in frames],
        "codecs": [one.codec for one in frames],
        "frames": [one.frame for one in frames],
    }
