"""Looking after queues: what there is, trying again what was given up, cancelling, purging, limits. On a sync connection.

Each takes effect when it returns, or with the transaction that it is called in; what touches many jobs does so a part at a
time, so that no worker waits for long.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from headwater.errors import JobError
from headwater.postgres.connect import Connection
from headwater.postgres.latest import bound_waiting, latest_sync
from headwater.postgres.statements import Statement, execute_sync, fetch_sync
from headwater.queue import operate_statements as sql
from headwater.queue.job import queue_fault
from headwater.queue.operate_statements import Cancelled, Cron, Day, Done, JobState, Limits, Live, More
from headwater.queue.statements import ring

STATES: Final = ("scheduled", "claimed", "done", "cancelled", "error")

# Jobs that one statement takes, retries or cancels: some milliseconds' worth of locks.
_PART: Final = 1000
# Some hundred thousand done jobs are counted within a fifth of a second; a million took 0.4 s.
_COUNTED_BYTES: Final = 64 * 1024 * 1024
# Who waits for a lock on the table of finished jobs makes all workers wait behind.
_LOCK_WITHIN: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue: its limits, its jobs by kind, how many were given up, and how many done of late, if that was counted."""

    limits: Limits
    kinds: Sequence[Live]
    dead: int
    done: Done | None

    @property
    def scheduled(self) -> int:
        return sum(one.scheduled for one in self.kinds)

    @property
    def due(self) -> int:
        return sum(one.due for one in self.kinds)

    @property
    def claimed(self) -> int:
        return sum(one.claimed for one in self.kinds)

    @property
    def oldest_seconds(self) -> float | None:
        return max((one.oldest_seconds for one in self.kinds if one.oldest_seconds is not None), default=None)


@dataclass(frozen=True, slots=True)
class Status:
    """All queues, the days of finished jobs by the server's estimate, the connected workers, and the periodic jobs."""

    queues: Sequence[QueueStatus]
    days: Sequence[Day]
    workers: int
    periodic: Sequence[Cron]


@dataclass(frozen=True, slots=True)
class Purged:
    """Whole days that were dropped, with so many jobs by the server's estimate, and jobs that were deleted one by one."""

    days: int
    jobs_of_days: int
    jobs: int


def read_status(connection: Connection) -> Status:
    """Exact for jobs that are not finished or were given up; of finished ones there is an estimate, which is cheap.

    Those of the last day are counted, unless they take so much that it would be slow.
    """
    limits = {one.queue: one for one in fetch_sync(connection, sql.read_limits())}
    dead = {one.queue: one.jobs for one in fetch_sync(connection, sql.count_dead())}
    kinds: dict[str, list[Live]] = {}
    for live in fetch_sync(connection, sql.count_live()):
        kinds.setdefault(live.queue, []).append(live)
    days = fetch_sync(connection, sql.measure_days())
    done = _count_done(connection, days)
    queues = [
        QueueStatus(
            limits.get(name, Limits(name)),
            kinds.get(name, []),
            dead.get(name, 0),
            None if done is None else done.get(name, Done(name, 0, 0)),
        )
        for name in sorted({*limits, *dead, *kinds, *(done or ())})
    ]
    (workers,) = fetch_sync(connection, sql.count_workers())
    return Status(queues, [one for one in days if one.jobs], workers, fetch_sync(connection, sql.list_cron()))


def list_jobs(
    connection: Connection,
    *,
    queue: str | None = None,
    kind: str | None = None,
    state: str | None = None,
    limit: int = 100,
) -> list[JobState]:
    """Jobs of all states, or of one, the newest first."""
    if state is not None and state not in STATES:
        raise JobError(f"{state!r} is no state of a job; they are {', '.join(STATES)}")
    return fetch_sync(connection, sql.list_jobs(queue, kind, state, limit))


def find_jobs(connection: Connection, ids: Sequence[int]) -> list[JobState]:
    """Those of them that are there, by their ids."""
    return fetch_sync(connection, sql.find_jobs(ids))


def show_job(connection: Connection, id: int) -> tuple[JobState, More]:
    """A job in whichever state; JobError if it is not there."""
    with latest_sync(connection):
        found = find_jobs(connection, [id])
        more = fetch_sync(connection, sql.find_more(id))
    if not found:
        raise JobError(f"there is no job {id}; it was purged, or its number is another one")
    return found[0], more[0] if more else More()


def retry_jobs(connection: Connection, ids: Sequence[int]) -> list[int]:
    """Have jobs that were given up tried again, as if for the first time, under their ids; returns those that are.

    One whose unique key another job has by now stays where it is.
    """
    with latest_sync(connection):
        return fetch_sync(connection, sql.retry(ids))


def retry_all(connection: Connection, *, queue: str | None = None, kind: str | None = None) -> int:
    """All that were given up, or those of a queue, of a kind; how many."""
    return sum(
        len(retry_jobs(connection, part))
        for part in _parts(connection, lambda after: sql.find_dead_ids(queue, kind, after, _PART))
    )


def cancel_jobs(connection: Connection, ids: Sequence[int]) -> list[Cancelled]:
    """Cancel jobs: one that waits is finished at once, of one in hand its worker is told. Returns those that were."""
    with latest_sync(connection):
        return fetch_sync(connection, sql.cancel(ids))


def cancel_all(connection: Connection, *, queue: str | None = None, kind: str | None = None) -> tuple[int, int]:
    """All that are not finished of a queue, of a kind, or of both: how many are cancelled, and of how many more is told."""
    if queue is None and kind is None:
        raise JobError("to cancel everything is hardly meant; name a queue or a kind")
    parts = _parts(connection, lambda after: sql.find_live_ids(queue, kind, after, _PART))
    found = told = 0
    for part in parts:
        cancelled = cancel_jobs(connection, part)
        found, told = found + len(cancelled), told + sum(one.was_claimed for one in cancelled)
    return found - told, told


def count_live(connection: Connection, *, queue: str | None = None, kind: str | None = None) -> int:
    """How many `cancel_all` would find."""
    return fetch_sync(connection, sql.count_live_of(queue, kind))[0]


def count_purgeable(connection: Connection, state: Literal["error", "done"], before: datetime) -> int | None:
    """How many `purge` would delete; None where that is not known without counting them all."""
    return fetch_sync(connection, sql.count_dead_before(before))[0] if state == "error" else None


def purge(connection: Connection, state: Literal["error", "done"], before: datetime) -> Purged:
    """Delete jobs that were finished before a time: those that were given up, or those that are done or cancelled.

    Days of the latter that ended before it are dropped as a whole, and the idempotency keys of that time go with them.
    """
    (now,) = fetch_sync(connection, sql.read_clock())
    if before > now:
        raise JobError(f"{before:%Y-%m-%d %H:%M:%S%z} is not over yet; name a time before now")
    if state == "error":
        return Purged(0, 0, execute_sync(connection, sql.purge_dead(before)))
    held = _jobs_of_days(connection)
    with latest_sync(connection):
        fetch_sync(connection, bound_waiting(_LOCK_WITHIN))
        (days,) = fetch_sync(connection, sql.purge_days(before))
    # On its own: who drops a day locks out all who finish jobs, until the transaction ends.
    jobs = execute_sync(connection, sql.purge_done(before))
    left = _jobs_of_days(connection)
    return Purged(days, sum(count for day, count in held.items() if day not in left), jobs)


def read_limits(connection: Connection, queue: str) -> Limits:
    """Those of a queue; one that nobody has given any has none."""
    return next(iter(fetch_sync(connection, sql.read_limits(_checked(queue)))), Limits(queue))


def limit(connection: Connection, limits: Limits) -> Limits:
    """Have a queue worked off within limits, in place of those that it had; jobs in hand count already.

    Whether it is paused stays as it is. A claim that is under way is waited for, and the next one is within the limits;
    in a transaction of the caller's, claims of the queue wait for its end.
    """
    for name in ("most_running", "most_running_per_key", "rate", "rate_per_key"):
        value = getattr(limits, name)
        if value is not None and not 0 < value < 2**31:
            raise JobError(f"{name} of queue {limits.queue!r} is {value!r}; give a number of 1 or more, or None for any")
    for name in ("rate_per", "rate_per_key_per"):
        if getattr(limits, name) <= timedelta(0):
            raise JobError(f"{name} of queue {limits.queue!r} is not a time; give one that is more than 0")
    queue = _checked(limits.queue)
    with latest_sync(connection):
        fetch_sync(connection, sql.hold_claims(queue))
        execute_sync(connection, sql.limit(limits))
        execute_sync(connection, sql.count_in(queue))
        fetch_sync(connection, ring([limits.queue]))
    return read_limits(connection, limits.queue)


def is_known(connection: Connection, queue: str) -> bool:
    """Whether a queue has a job, or had one of late; one that never had any is perhaps another's name, mistyped."""
    return fetch_sync(connection, sql.is_known(_checked(queue)))[0]


def pause(connection: Connection, queue: str) -> None:
    """Have no more jobs of a queue claimed; those in hand are finished, and what is enqueued waits."""
    with latest_sync(connection):
        fetch_sync(connection, sql.hold_claims(_checked(queue)))
        execute_sync(connection, sql.pause(queue, is_paused=True))


def resume(connection: Connection, queue: str) -> None:
    """Have them claimed again."""
    with connection.transaction():
        execute_sync(connection, sql.pause(_checked(queue), is_paused=False))
        fetch_sync(connection, ring([queue]))


def _checked(queue: str) -> str:
    if fault := queue_fault(queue):
        raise JobError(fault)
    return queue


def _count_done(connection: Connection, days: Sequence[Day]) -> dict[str, Done] | None:
    """By queue; None if that would take long."""
    (now,) = fetch_sync(connection, sql.read_clock())
    recent = {None, *(f"{(now - ago).astimezone(UTC):%Y%m%d}" for ago in (timedelta(0), timedelta(days=1)))}
    if sum(one.bytes for one in days if one.day in recent) > _COUNTED_BYTES:
        return None
    return {one.queue: one for one in fetch_sync(connection, sql.count_done())}


def _jobs_of_days(connection: Connection) -> dict[str | None, int]:
    return {one.day: one.jobs for one in fetch_sync(connection, sql.measure_days())}


def _parts(connection: Connection, find: Callable[[int], Statement[int]]) -> Iterator[list[int]]:
    """Ids, some at a time, also while those before them vanish."""
    after = 0
    while ids := fetch_sync(connection, find(after)):
        yield ids
        after = ids[-1]
