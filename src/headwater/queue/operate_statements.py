"""The SQL for those who look after queues: rights, what there is, and what is done about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from psycopg import sql

from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.queue", "sql/operate.sql")

_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class JobState:
    """A job in any state: `scheduled`, `claimed`, `done`, `cancelled` or `error`."""

    id: int
    queue: str
    kind: str
    state: str
    attempt: int
    priority: int
    run_at: datetime
    key: str | None
    payload: Any
    created_at: datetime
    claimed_at: datetime | None
    lease_until: datetime | None
    finished_at: datetime | None
    worker: str | None
    error: str | None
    error_class: str | None


@dataclass(frozen=True, slots=True)
class More:
    """What is known beyond that of a job that is not finished, or was given up."""

    unique_key: str | None = None
    trace: str | None = None
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A job that was cancelled; one that was claimed is so when its worker has heard of it."""

    id: int
    was_claimed: bool


@dataclass(frozen=True, slots=True)
class Live:
    """Jobs of a kind in a queue that are not finished; the oldest that is due and nobody has waits for so long."""

    queue: str
    kind: str
    scheduled: int
    due: int
    claimed: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class Dead:
    """How many jobs of a queue were given up."""

    queue: str
    jobs: int


@dataclass(frozen=True, slots=True)
class Done:
    """How many jobs of a queue were done of late."""

    queue: str
    last_hour: int
    last_day: int


@dataclass(frozen=True, slots=True)
class Day:
    """What is kept of a day, as 20261117; without one, what has none of its own. The jobs are an estimate of the server."""

    day: str | None
    jobs: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Cron:
    """A periodic job, and when it was enqueued the last time."""

    name: str
    expression: str
    fired_at: datetime


@dataclass(frozen=True, slots=True)
class Limits:
    """How a queue is worked off: whether it is, one at a time of each key, so many at once, so many within a time."""

    queue: str
    is_paused: bool = False
    is_ordered: bool = False
    most_running: int | None = None
    most_running_per_key: int | None = None
    rate: int | None = None
    rate_per: timedelta = _SECOND
    rate_per_key: int | None = None
    rate_per_key_per: timedelta = _SECOND


def grant_enqueuing(role: str) -> Statement[None]:
    return SQL["grant_enqueuing"].compose(role=sql.Identifier(role))


def grant_working(role: str) -> Statement[None]:
    return SQL["grant_working"].compose(role=sql.Identifier(role))


def list_jobs(queue: str | None, kind: str | None, state: str | None, limit: int) -> Statement[JobState]:
    return SQL["list_jobs"].bind(JobState, queue=queue, kind=kind, state=state, limit=limit)


def find_jobs(ids: Sequence[int]) -> Statement[JobState]:
    return SQL["find_jobs"].bind(JobState, ids=list(ids))


def find_more(id: int) -> Statement[More]:
    return SQL["find_more"].bind(More, id=id)


def find_live_ids(queue: str | None, kind: str | None, after: int, limit: int) -> Statement[int]:
    return SQL["find_live_ids"].bind(int, queue=queue, kind=kind, after=after, limit=limit)


def count_live_of(queue: str | None, kind: str | None) -> Statement[int]:
    return SQL["count_live_of"].bind(int, queue=queue, kind=kind)


def find_dead_ids(queue: str | None, kind: str | None, after: int, limit: int) -> Statement[int]:
    return SQL["find_dead_ids"].bind(int, queue=queue, kind=kind, after=after, limit=limit)


def retry(ids: Sequence[int]) -> Statement[int]:
    return SQL["retry"].bind(int, ids=list(ids))


def cancel(ids: Sequence[int]) -> Statement[Cancelled]:
    return SQL["cancel"].bind(Cancelled, ids=list(ids))


def count_dead_before(before: datetime) -> Statement[int]:
    return SQL["count_dead_before"].bind(int, before=before)


def purge_dead(before: datetime) -> Statement[object]:
    return SQL["purge_dead"].bind(object, before=before)


def purge_days(before: datetime) -> Statement[int]:
    return SQL["purge_days"].bind(int, before=before)


def purge_done(before: datetime) -> Statement[object]:
    return SQL["purge_done"].bind(object, before=before)


def read_clock() -> Statement[datetime]:
    return SQL["read_clock"].bind(datetime)


def count_live() -> Statement[Live]:
    return SQL["count_live"].bind(Live)


def count_dead() -> Statement[Dead]:
    return SQL["count_dead"].bind(Dead)


def read_limits(queue: str | None = None) -> Statement[Limits]:
    return SQL["read_limits"].bind(Limits, queue=queue)


def measure_days() -> Statement[Day]:
    return SQL["measure_days"].bind(Day)


def count_done() -> Statement[Done]:
    return SQL["count_done"].bind(Done)


def count_workers() -> Statement[int]:
    return SQL["count_workers"].bind(int)


def list_cron() -> Statement[Cron]:
    return SQL["list_cron"].bind(Cron)


def is_known(queue: str) -> Statement[bool]:
    return SQL["is_known"].bind(bool, queue=queue)


def hold_claims(queue: str) -> Statement[object]:
    return SQL["hold_claims"].bind(object, queue=queue)


def pause(queue: str, *, is_paused: bool) -> Statement[object]:
    return SQL["pause"].bind(object, queue=queue, is_paused=is_paused)


def limit(limits: Limits) -> Statement[object]:
    """Whether it is paused stays as it is."""
    return SQL["limit"].bind(
        object,
        queue=limits.queue,
        is_ordered=limits.is_ordered,
        most_running=limits.most_running,
        most_running_per_key=limits.most_running_per_key,
        rate=limits.rate,
        rate_per=limits.rate_per,
        rate_per_key=limits.rate_per_key,
        rate_per_key_per=limits.rate_per_key_per,
    )


def count_in(queue: str) -> Statement[object]:
    return SQL["count_in"].bind(object, queue=queue)
