"""The partitions of the outbox: made ahead of time, and dropped when all that is in them was delivered long ago.

Neither may hold up those who write. Both wait for locks only for a moment; what cannot be done now is said, and done by the
next call. Until then nothing is lost: rows without a partition of their own are in the default one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
from psycopg.pq import TransactionStatus

from headwater.errors import SettingsError
from headwater.outbox import statements
from headwater.outbox.statements import Coverage, Partition
from headwater.postgres.connect import Connection
from headwater.postgres.latest import bound_waiting
from headwater.postgres.statements import execute_sync, fetch_sync

# Writers queue behind whoever waits for a lock on the outbox. Less than deadlock_timeout, so that the one who gives way
# where two wait for each other is never the application.
LOCK_TIMEOUT: Final = timedelta(milliseconds=500)
# More than two years of days, or six weeks of hours; each costs every query of the table a little.
_MOST_PARTITIONS: Final = 1000
# The default partition is locked while it is searched for rows of the new one; as a rule it is empty.
_SEARCH_TIMEOUT: Final = timedelta(seconds=3)
_STRAYS: Final = 10_000
# A partition that begins later than that is there before anybody writes to it.
_SOON: Final = timedelta(minutes=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Kept:
    """What was not made, or not dropped, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ensured:
    """The partitions that a call has made, and those that it could not make."""

    made: tuple[Partition, ...]
    missing: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class Purged:
    """What was dropped, what was kept though it is old, and how many rows were deleted from the default partition."""

    dropped: tuple[Partition, ...]
    kept: tuple[Kept, ...]
    deleted: int


def ensure_partitions(
    connection: Connection,
    ahead: timedelta = timedelta(days=7),
    every: timedelta = timedelta(days=1),
    *,
    spares_present: bool = False,
) -> Ensured:
    """Make the partitions from now on for a time `ahead`, each of the length `every`; what is there stays as it is.

    A range of which rows are in the default partition already gets none. Rows are not moved: a publication that has more
    than the outbox in it would send them a second time. With `spares_present` none is made for the present either: whoever
    writes to the default partition at that moment would fail.
    """
    _require_own(connection)
    if every < timedelta(hours=1) or ahead < timedelta(0):
        raise SettingsError("partitions of the outbox are of one hour or longer, and made for a time that is not negative")
    if ahead / every > _MOST_PARTITIONS:
        raise SettingsError(
            f"that would be {ahead / every:,.0f} partitions, and more than {_MOST_PARTITIONS} are not made at a time; make "
            "them longer, or for a shorter time"
        )
    (now,) = fetch_sync(connection, statements.read_clock())
    wanted = missing_partitions(fetch_sync(connection, statements.list_partitions()), now, ahead, every)
    if spares_present:
        wanted = [partition for partition in wanted if partition.lower > now + _SOON]
    done = [_make(connection, partition) for partition in wanted]
    made = tuple(one for one in done if isinstance(one, Partition))
    return Ensured(made, tuple(one for one in done if isinstance(one, Kept)))


def is_unused(connection: Connection) -> bool:
    """Whether the outbox has neither rows nor partitions yet, so that that of the present is at nobody's cost."""
    if fetch_sync(connection, statements.list_partitions()):
        return False
    return not fetch_sync(
        connection, statements.has_strays(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
    )[0]


def missing_partitions(existing: Sequence[Partition], now: datetime, ahead: timedelta, every: timedelta) -> list[Partition]:
    """The partitions that are to be made between those that exist, so that none overlap, whatever their length was. Pure."""
    missing: list[Partition] = []
    at, end = _floor(now, every), now + ahead
    while at <= end:
        covering = next((one for one in existing if one.lower <= at < one.upper), None)
        if covering is not None:
            at = covering.upper
            continue
        upper = min([_floor(at, every) + every, *(one.lower for one in existing if one.lower > at)])
        missing.append(Partition("headwater", f"outbox_message_{at.astimezone(UTC):%Y%m%d_%H%M}", at, upper))
        at = upper
    return missing


def drop_partitions(connection: Connection, before: datetime, *, dry_run: bool = False) -> Purged:
    """Drop the partitions that end at or before a time and whose rows were all delivered, by every saved checkpoint.

    Where no pipeline has a checkpoint, rows count as delivered that a relay has marked as published. Of the default
    partition such rows are deleted. With `dry_run` nothing is changed, and `deleted` is how many old rows it has.
    """
    _require_own(connection)
    old = [one for one in fetch_sync(connection, statements.list_partitions()) if one.upper <= before]
    tried = [(partition, _drop(connection, partition, dry_run=dry_run)) for partition in old]
    dropped = tuple(partition for partition, reason in tried if reason is None)
    kept = tuple(Kept(partition.name, reason) for partition, reason in tried if reason is not None)
    return Purged(dropped, kept, _delete_strays(connection, before, dry_run=dry_run))


def _make(connection: Connection, partition: Partition) -> Partition | Kept | None:
    """Make a partition, or say why not; None if somebody else was quicker."""
    if fetch_sync(connection, statements.has_strays(partition.lower, partition.upper))[0]:
        return Kept(partition.name, "rows of its time are in the default partition; they stay there until they are purged")
    try:
        with connection.transaction():
            execute_sync(connection, statements.see_latest())
            execute_sync(connection, bound_waiting(LOCK_TIMEOUT, _SEARCH_TIMEOUT))
            execute_sync(connection, statements.lock_partitions())
            existing = fetch_sync(connection, statements.list_partitions())
            if any(one.lower < partition.upper and partition.lower < one.upper for one in existing):
                return None
            execute_sync(connection, statements.create_partition(partition))
    except psycopg.Error as exc:
        return Kept(partition.name, _reason(connection, exc))
    return partition


def _drop(connection: Connection, partition: Partition, *, dry_run: bool) -> str | None:
    """Drop a partition, or say why not."""
    try:
        with connection.transaction(force_rollback=dry_run):
            execute_sync(connection, statements.see_latest())
            # It may take a while to find out whether its rows are still needed, whatever limit the role has.
            execute_sync(connection, bound_waiting(LOCK_TIMEOUT, timedelta(0)))
            if not dry_run:
                # From here on nobody writes to it, and who has written to it has committed or is forgotten.
                execute_sync(connection, statements.hold_partition(partition))
            reason = _hindrance(connection, partition)
            if reason is None and not dry_run:
                execute_sync(connection, statements.drop_partition(partition))
    except psycopg.Error as exc:
        return _reason(connection, exc)
    return reason


def _hindrance(connection: Connection, partition: Partition) -> str | None:
    """Why the rows of a partition are still needed, if they are."""
    coverage = fetch_sync(connection, statements.list_coverage())
    if coverage:
        behind = fetch_sync(connection, statements.list_behind(partition, coverage))
        return _said(behind, coverage) if behind else None
    if fetch_sync(connection, statements.has_unpublished(partition))[0]:
        return "no pipeline has a checkpoint, and not all of its rows are marked as published"
    return None


def _said(behind: Sequence[str], coverage: Sequence[Coverage]) -> str:
    blank = {one.pipeline for one in coverage if one.snapshot is None}
    return "; ".join(
        f"pipeline {name} has no checkpoint of this server's history"
        if name in blank
        else f"pipeline {name} has not delivered all of it, by its saved checkpoint"
        for name in behind
    )


def _delete_strays(connection: Connection, before: datetime, *, dry_run: bool) -> int:
    if dry_run:
        return fetch_sync(connection, statements.count_strays(before))[0]
    deleted = 0
    while True:
        with connection.transaction():
            execute_sync(connection, statements.see_latest())
            coverage = fetch_sync(connection, statements.list_coverage())
            count = execute_sync(connection, statements.delete_strays(before, coverage, _STRAYS))
        deleted += count
        if count < _STRAYS:
            return deleted


def _reason(connection: Connection, error: psycopg.Error) -> str:
    """Why the server did not do something; a connection that is gone is no reason, but an error."""
    if connection.broken:
        raise error
    match error:
        case psycopg.errors.LockNotAvailable():
            return "transactions that use the outbox did not end in time; it is tried again the next time"
        case psycopg.errors.QueryCanceled():
            return "the default partition is too large to be searched while writers wait; purge it first"
        case _:
            return error.diag.message_primary or type(error).__name__


def _floor(at: datetime, every: timedelta) -> datetime:
    return at - (at - _EPOCH) % every


def _require_own(connection: Connection) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise SettingsError("partitions are made and dropped one by one; use a connection that is not in a transaction")
