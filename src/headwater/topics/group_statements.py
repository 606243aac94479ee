"""The SQL of groups: statements with their parameters and rows named."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from headwater.postgres.statements import Statement, load
from headwater.topics.statements import LogRow, of_topic
from headwater.topics.window import Part

SQL: Final = load("headwater.topics", "sql/groups.sql")


@dataclass(frozen=True, slots=True)
class Group:
    """Who reads a topic together, and how many members are there now."""

    topic: str
    id: int
    name: str
    mode: str
    is_paused: bool
    generation: int
    created_at: datetime
    members: int


@dataclass(frozen=True, slots=True)
class Place:
    """An offset of a partition that somebody wants, and what is there: from `first_offset` to before `next_offset`."""

    partition: int
    first_offset: int
    next_offset: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is in a partition; in shared mode `claimed` are given out and not committed."""

    topic: str
    group_name: str
    mode: str
    is_paused: bool
    partition: int
    next_offset: int
    tip: int
    claimed: int
    lag: int
    oldest_age: timedelta | None
    member: UUID | None
    epoch: int
    committed_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up."""

    partition: int
    message_offset: int
    key: str | None
    payload: bytes
    headers: Mapping[str, str]
    created_at: datetime
    reason: str
    attempts: int
    died_at: datetime


@dataclass(frozen=True, slots=True)
class Beat:
    """Whether the group knows this member, and in how many seconds the next lease of another one ends."""

    is_member: bool
    others_seconds: float | None


@dataclass(frozen=True, slots=True)
class Members:
    generation: int
    members: list[UUID]


@dataclass(frozen=True, slots=True)
class Cursor:
    partition: int
    next_offset: int
    epoch: int
    member: UUID | None
    attempts: int
    suspect_until: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class Polled:
    """How the group is, with a frame of the log for one who has asked; without, `ask` and what follows are None.

    `is_settled` is whether something was committed by the way.
    """

    is_settled: bool | None
    generation: int
    is_paused: bool
    has_staged: bool
    ask: int | None
    partition: int
    last_offset: int
    count: int
    codec: int
    created_at: datetime
    frame: bytes


@dataclass(frozen=True, slots=True)
class Looked:
    generation: int
    is_paused: bool
    has_staged: bool
    has_free: bool
    has_new: bool


@dataclass(frozen=True, slots=True)
class Claim:
    partition: int
    first_offset: int
    last_offset: int
    epoch: int
    attempts: int


def find_groups(topic: str | None, name: str | None = None) -> Statement[Group]:
    return SQL["find_groups"].bind(Group, topic=topic, name=name)


def resolve_position(
    topic_id: int, kind: str, offset: int | None, at: datetime | None, partition: int | None
) -> Statement[Place]:
    return SQL["resolve_position"].bind(Place, topic_id=topic_id, kind=kind, offset=offset, at=at, partition=partition)


def keep_topic(topic_id: int) -> Statement[bool]:
    return SQL["keep_topic"].bind(bool, topic_id=topic_id)


def make_group(topic_id: int, name: str, mode: str, offsets: Mapping[int, int]) -> Statement[object]:
    return SQL["make_group"].bind(
        object, topic_id=topic_id, name=name, mode=mode, partitions=list(offsets), offsets=list(offsets.values())
    )


def drop_group(group_id: int) -> Statement[object]:
    return SQL["drop_group"].bind(object, group_id=group_id)


def pause_group(group_id: int, *, is_paused: bool) -> Statement[object]:
    return SQL["pause_group"].bind(object, group_id=group_id, is_paused=is_paused)


def seek(group_id: int, offsets: Mapping[int, int]) -> Statement[object]:
    return SQL["seek"].bind(object, group_id=group_id, partitions=list(offsets), offsets=list(offsets.values()))


def forget_claims(group_id: int, partitions: Iterable[int]) -> Statement[object]:
    return SQL["forget_claims"].bind(object, group_id=group_id, partitions=list(partitions))


def read_lag(topic: str | None, name: str | None) -> Statement[Lag]:
    return SQL["read_lag"].bind(Lag, topic=topic, name=name)


def join_group(group_id: int, topic_id: int, member: UUID, label: str, lease: timedelta) -> Statement[object]:
    return SQL["join_group"].bind(
        object, group_id=group_id, topic_id=topic_id, member=member, label=label, lease_seconds=lease.total_seconds()
    )


def renew(group_id: int, member: UUID, lease: timedelta) -> Statement[Beat]:
    return SQL["renew"].bind(Beat, group_id=group_id, member=member, lease_seconds=lease.total_seconds())


def see_others(group_id: int, member: UUID) -> Statement[Beat]:
    return SQL["see_others"].bind(Beat, group_id=group_id, member=member)


def expire_members(group_id: int) -> Statement[object]:
    return SQL["expire_members"].bind(object, group_id=group_id)


def read_group(group_id: int) -> Statement[Members]:
    return SQL["read_group"].bind(Members, group_id=group_id)


def read_cursors(group_id: int, topic_id: int) -> Statement[Cursor]:
    return SQL["read_cursors"].bind(Cursor, group_id=group_id, topic_id=topic_id)


def assign_partitions(group_id: int, generation: int, member: UUID, owners: Mapping[int, UUID]) -> Statement[object]:
    """Touches no row if the generation is another by now."""
    return SQL["assign_partitions"].bind(
        object,
        group_id=group_id,
        generation=generation,
        member=member,
        partitions=list(owners),
        members=list(owners.values()),
    )


def leave_group(group_id: int, member: UUID, given: Sequence[int] = ()) -> Statement[object]:
    return SQL["leave_group"].bind(object, group_id=group_id, member=member, given=list(given))


def poll(  # noqa: PLR0913 - what is wanted, and what is committed
    topic_id: int,
    group_id: int,
    wanted: Sequence[tuple[int, int, int, int, int]],
    settled: Sequence[Part],
    *,
    waits: bool,
    waits_for_others: bool,
) -> Statement[Polled]:
    """Wanted are: who asks, partition, next offset, how many messages and how many bytes."""
    asks, partitions, offsets, mosts, most_bytes = zip(*wanted, strict=True) if wanted else ((),) * 5
    return of_topic(SQL["poll"], topic_id).bind(
        Polled,
        topic_id=topic_id,
        group_id=group_id,
        asks=_array(asks),
        partitions=_array(partitions),
        offsets=_array(offsets),
        mosts=_array(mosts),
        most_bytes=_array(most_bytes),
        settled=_array([part.partition for part in settled]) if settled else None,
        settled_epochs=_array([part.epoch for part in settled]),
        settled_offsets=_array([part.next_offset for part in settled]),
        waits=waits,
        waits_for_others=waits_for_others,
    )


def look(topic_id: int, group_id: int, member: UUID, known: Sequence[tuple[int, int]]) -> Statement[Looked]:
    return of_topic(SQL["look"], topic_id).bind(Looked, topic_id=topic_id, group_id=group_id, member=member, **_pairs(known))


def claim(  # noqa: PLR0913 - what is wanted, and how much of it
    topic_id: int,
    group_id: int,
    member: UUID,
    known: Sequence[tuple[int, int]],
    *,
    most: int,
    most_bytes: int,
    max_attempts: int,
    begin_at: int,
) -> Statement[Claim]:
    return SQL["claim"].bind(
        Claim,
        topic_id=topic_id,
        group_id=group_id,
        member=member,
        most=most,
        most_bytes=most_bytes,
        max_attempts=max_attempts,
        begin_at=begin_at,
        **_pairs(known),
    )


def read_range(topic_id: int, partition: int, first_offset: int, last_offset: int) -> Statement[LogRow]:
    return of_topic(SQL["read_range"], topic_id).bind(
        LogRow, partition=partition, first_offset=first_offset, last_offset=last_offset
    )


def settle(group_id: int, parts: Sequence[Part]) -> Statement[bool]:
    """In a transaction of the caller, who has also committed what came before."""
    return SQL["settle"].bind(
        bool,
        group_id=group_id,
        partitions=[part.partition for part in parts],
        epochs=[part.epoch for part in parts],
        offsets=[part.next_offset for part in parts],
        firsts=[part.first_offset for part in parts],
    )


def settle_claims(
    group_id: int, claims: Sequence[tuple[int, int]], epochs: Sequence[int], *, is_again: bool, waits: bool
) -> Statement[bool]:
    return SQL["settle_claims"].bind(
        bool, group_id=group_id, epochs=list(epochs), is_again=is_again, waits=waits, **_pairs(claims)
    )


def count_failure(group_id: int, partitions: Sequence[int], epochs: Sequence[int]) -> Statement[object]:
    return SQL["count_failure"].bind(object, group_id=group_id, partitions=list(partitions), epochs=list(epochs))


def free_claims(group_id: int, claims: Sequence[tuple[int, int]], epochs: Sequence[int]) -> Statement[object]:
    return SQL["free_claims"].bind(object, group_id=group_id, epochs=list(epochs), **_pairs(claims))


def mark_alone(group_id: int, partition: int, first_offset: int, epoch: int) -> Statement[object]:
    return SQL["mark_alone"].bind(object, group_id=group_id, partition=partition, first_offset=first_offset, epoch=epoch)


def suspect(group_id: int, partition: int, epoch: int, suspect_until: int, attempts: int) -> Statement[object]:
    return SQL["suspect"].bind(
        object, group_id=group_id, partition=partition, epoch=epoch, suspect_until=suspect_until, attempts=attempts
    )


def bury(  # noqa: PLR0913 - the columns
    group_id: int,
    partition: int,
    offset: int,
    *,
    first_offset: int,
    key: str | None,
    payload: bytes,
    headers: str,
    created_at: datetime,
    reason: str,
    attempts: int,
    epoch: int,
) -> Statement[object]:
    return SQL["bury"].bind(
        object,
        group_id=group_id,
        partition=partition,
        offset=offset,
        first_offset=first_offset,
        key=key,
        payload=payload,
        headers=headers,
        created_at=created_at,
        reason=reason,
        attempts=attempts,
        epoch=epoch,
    )


def list_dead(group_id: int, partition: int | None, offset: int | None, limit: int) -> Statement[DeadLetter]:
    return SQL["list_dead"].bind(DeadLetter, group_id=group_id, partition=partition, offset=offset, limit=limit)


def take_dead(group_id: int, partition: int | None, offset: int | None) -> Statement[DeadLetter]:
    return SQL["take_dead"].bind(DeadLetter, group_id=group_id, partition=partition, offset=offset)


def _array(numbers: Iterable[int]) -> str:
    """As PostgreSQL reads it: psycopg takes ten times as long for a list, of which a poll has eight."""
    return f"{{{','.join(map(str, numbers))}}}"


def _pairs(pairs: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
    return {"partitions": [partition for partition, _ in pairs], "firsts": [first for _, first in pairs]}
