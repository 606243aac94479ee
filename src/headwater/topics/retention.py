"""The segments of a topic's log: a new one now and again, and whole ones dropped when their messages are not kept any more.

Neither may hold up those who append and read. Both wait for locks only for a moment; what cannot be done now is said, and
done by the next call. Offsets go on: what is dropped moves the oldest offset of a partition, and never the next one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final

import psycopg
from psycopg.pq import TransactionStatus

from headwater.errors import SettingsError, TopicError
from headwater.postgres.connect import Connection
from headwater.postgres.latest import bound_waiting, latest_sync
from headwater.postgres.statements import Row, execute_sync, fetch_sync
from headwater.topics import retention_statements
from headwater.topics.retention_statements import Segment
from headwater.topics.topic import Topic

# Whoever uses the log queues behind one who waits for it. Less than deadlock_timeout, so that it is never the others who
# give way where two wait for each other, and no more than a reader takes for a hiccup.
LOCK_TIMEOUT: Final = timedelta(milliseconds=100)
# Segments in what is kept: at most an eighth is there for longer than it must, and few enough that no query feels them.
_SEGMENTS: Final = 8
_SHORTEST: Final = timedelta(minutes=1)
_LARGEST: Final = 1 << 30
# As long as Kafka remembers a producer that sends nothing.
_PRODUCER_KEPT: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Upkept:
    """What a call has done: whether it began a new segment, which it dropped, and what it could not do, in sentences."""

    has_rotated: bool
    dropped: tuple[Segment, ...]
    hindrances: tuple[str, ...]


def maintain(connection: Connection, topic: Topic) -> Upkept:
    """Begin a new segment if the present one is old or large, and drop those that are not kept any more.

    Dropped are the oldest, whose messages are all older than the topic's retention and dealt with by all groups, and those
    that are beyond its `retention_bytes`, read or not. The connection is in no transaction, and of the owner of the tables.
    """
    _require_own(connection)
    segments = fetch_sync(connection, retention_statements.read_segments(topic.id))
    rotated = [_rotate(connection, topic, one) for one in segments if one.is_current and is_full(one, topic)]
    done = _drop(connection, topic, lambda segments: expired_segments(segments, topic), rotated)
    execute_sync(connection, retention_statements.forget_producers(topic.id, _PRODUCER_KEPT))
    return done


def trim(connection: Connection, topic: Topic, before: int | datetime | None = None, *, dry_run: bool = False) -> Upkept:
    """Drop the segments that have nothing but messages before an offset or a time, or all of them, read or not.

    An offset is meant for all partitions. Only whole segments are dropped, so that some of it may stay; the present one is
    closed for that if all of it may go. With `dry_run` nothing is changed, and `dropped` is what would be.
    """
    _require_own(connection)
    if isinstance(before, datetime) and before.tzinfo is None:
        raise TopicError(f"the time {before} has no time zone; give it one")
    doomed = segments_before(fetch_sync(connection, retention_statements.read_segments(topic.id)), before)
    if dry_run:
        return Upkept(False, tuple(doomed), ())
    rotated = [_rotate(connection, topic, one) for one in doomed if one.is_current]

    def choose(segments: Sequence[Segment]) -> list[Segment]:
        # What was appended to the current one until it was closed may be what is to stay.
        return [one for one in segments_before(segments, before) if not one.is_current]

    return _drop(connection, topic, choose, rotated)


def is_full(current: Segment, topic: Topic) -> bool:
    """Whether it is time for a new segment; one without messages serves on. Pure."""
    if current.newest_at is None:
        return False
    if topic.retention is not None:
        age = timedelta(seconds=current.current_seconds)
        if age >= max(topic.retention / _SEGMENTS, _SHORTEST):
            return True
    kept = _LARGEST * _SEGMENTS if topic.retention_bytes is None else topic.retention_bytes
    return current.bytes >= min(kept // _SEGMENTS, _LARGEST)


def expired_segments(segments: Sequence[Segment], topic: Topic) -> list[Segment]:
    """Those at the beginning that are not kept any more, never the current one. Pure."""
    remaining = sum(one.bytes for one in segments)
    expired: list[Segment] = []
    for one in segments:
        is_old = topic.retention is not None and (one.newest_at is None or one.read_at - one.newest_at > topic.retention)
        is_too_much = topic.retention_bytes is not None and remaining > topic.retention_bytes
        if one.is_current or not (is_too_much or (is_old and one.is_read)):
            break
        expired.append(one)
        remaining -= one.bytes
    return expired


def segments_before(segments: Sequence[Segment], before: int | datetime | None) -> list[Segment]:
    """Those at the beginning of which all messages stand before an offset or a time. Pure."""
    return list(takewhile(lambda one: is_before(one, before), segments))


def is_before(segment: Segment, before: int | datetime | None) -> bool:
    """Whether all messages of a segment stand before an offset or a time. Pure."""
    if segment.newest_at is None or segment.last_offset is None:
        return not segment.is_current
    if before is None:
        return True
    return segment.newest_at < before if isinstance(before, datetime) else segment.last_offset < before


def _rotate(connection: Connection, topic: Topic, current: Segment) -> bool | str:
    """Whether a new segment was begun, which somebody else may have done; or why not."""
    statement = retention_statements.rotate(topic.id, current.segment)
    return _bounded(connection, lambda: fetch_sync(connection, statement)[0])


def _drop(
    connection: Connection,
    topic: Topic,
    choose: Callable[[Sequence[Segment]], Sequence[Segment]],
    rotated: Sequence[bool | str],
) -> Upkept:
    hindrances = [one for one in rotated if isinstance(one, str)]
    dropped: Sequence[Segment] = ()
    if choose(fetch_sync(connection, retention_statements.read_segments(topic.id))):
        answer = _bounded(connection, lambda: _drop_chosen(connection, topic, choose))
        if isinstance(answer, str):
            hindrances.append(answer)
        else:
            dropped = answer
    return Upkept(True in rotated, tuple(dropped), tuple(hindrances))


def _drop_chosen(
    connection: Connection, topic: Topic, choose: Callable[[Sequence[Segment]], Sequence[Segment]]
) -> list[Segment]:
    """Choose again when nobody can go to an earlier place any more: a group may have begun to read there since."""
    execute_sync(connection, retention_statements.hold_topic(topic.id))
    doomed = choose(fetch_sync(connection, retention_statements.read_segments(topic.id)))
    if not doomed:
        return []
    gone = fetch_sync(connection, retention_statements.drop_segments(topic.id, doomed[-1].segment))[0]
    return [one for one in doomed if one.segment in gone]


def _bounded(connection: Connection, work: Callable[[], Row]) -> Row | str:
    """Do what waits for others only for a moment, in a transaction; or say why it was not done."""
    try:
        with latest_sync(connection):
            execute_sync(connection, bound_waiting(LOCK_TIMEOUT))
            return work()
    except psycopg.errors.LockNotAvailable:
        return "transactions that use the topic did not end in time; it is tried again the next time"


def _require_own(connection: Connection) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise SettingsError("segments are made and dropped one by one; use a connection that is not in a transaction")
