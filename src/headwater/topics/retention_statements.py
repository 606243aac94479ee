"""The SQL of retention: statements with their parameters and rows named."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from headwater.postgres.statements import Query, Statement, load

SQL: Final = load("headwater.topics", "sql/retention.sql")


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a topic's log, which goes as a whole.

    `newest_at` and `last_offset` are those of its newest message, over all partitions, and None if it has none. `is_read`
    says whether all groups have dealt with it. New messages go to the current one, which is so many seconds old.
    """

    segment: int
    bytes: int
    is_current: bool
    current_seconds: float
    newest_at: datetime | None
    last_offset: int | None
    is_read: bool
    read_at: datetime


def hold_topic(topic_id: int) -> Statement[object]:
    return SQL["hold_topic"].bind(object, topic_id=topic_id)


def read_segments(topic_id: int) -> Statement[Segment]:
    text = SQL["read_segments"].text.replace("topic_log_0", f"topic_log_{int(topic_id)}")
    return Query("read_segments", text).bind(Segment, topic_id=topic_id)


def rotate(topic_id: int, segment: int) -> Statement[bool]:
    return SQL["rotate"].bind(bool, topic_id=topic_id, segment=segment)


def drop_segments(topic_id: int, up_to: int) -> Statement[Sequence[int]]:
    """Gives one row: the segments that were dropped."""
    return SQL["drop_segments"].bind(list, topic_id=topic_id, up_to=up_to)


def forget_producers(topic_id: int, after: timedelta) -> Statement[None]:
    return SQL["forget_producers"].bind(type(None), topic_id=topic_id, seconds=after.total_seconds())
