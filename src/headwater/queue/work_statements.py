"""The SQL of workers: statements with their parameters and rows named."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from headwater.postgres.statements import Statement, load
from headwater.queue.job import Job

SQL: Final = load("headwater.queue", "sql/work.sql")


@dataclass(frozen=True, slots=True)
class Looked:
    """When the next job of a queue is due or may begin, for how long the oldest due one waits, and whether it has limits."""

    next_seconds: float | None
    oldest_seconds: float | None
    oldest_kind: str | None
    is_limited: bool


@dataclass(frozen=True, slots=True)
class Renewed:
    id: int
    is_cancelled: bool


def claim(  # noqa: PLR0913 - the parameters of the function
    queue: str,
    kinds: Sequence[str],
    most: int,
    lease: timedelta,
    worker: str,
    *,
    sweeps: bool,
    after_run_ats: Sequence[datetime | None],
    after_ids: Sequence[int | None],
) -> Statement[Job]:
    return SQL["claim"].bind(
        Job,
        queue=queue,
        kinds=list(kinds),
        most=most,
        lease=lease,
        worker=worker,
        sweeps=sweeps,
        after_run_ats=list(after_run_ats),
        after_ids=list(after_ids),
    )


def look(queue: str) -> Statement[Looked]:
    return SQL["look"].bind(Looked, queue=queue)


def look_ahead(queue: str) -> Statement[float | None]:
    """One row; None if none is scheduled, or waits for its rate."""
    return SQL["look_ahead"].bind(float, queue=queue)


def finish(jobs: Sequence[Job], outcome: str, *, is_again: bool = False) -> Statement[int]:
    times = _times(jobs) if is_again else None
    return SQL["finish"].bind(int, outcome=outcome, is_again=is_again, claimed_ats=times, **_of(jobs))


def give_up(
    jobs: Sequence[Job], errors: Sequence[str], error_classes: Sequence[str], *, is_again: bool = False
) -> Statement[int]:
    return SQL["give_up"].bind(
        int,
        errors=list(errors),
        error_classes=list(error_classes),
        is_again=is_again,
        claimed_ats=_times(jobs) if is_again else None,
        **_of(jobs),
    )


def postpone(  # noqa: PLR0913 - the columns
    jobs: Sequence[Job],
    waits: Sequence[timedelta],
    errors: Sequence[str],
    error_classes: Sequence[str],
    *,
    counts: Sequence[bool] = (),
    is_again: bool = False,
) -> Statement[int]:
    return SQL["postpone"].bind(
        int,
        waits=list(waits),
        counts=list(counts) or [True] * len(jobs),
        errors=list(errors),
        error_classes=list(error_classes),
        is_again=is_again,
        **_of(jobs),
    )


def release(jobs: Sequence[Job], *, is_again: bool = False) -> Statement[int]:
    return SQL["release"].bind(int, is_again=is_again, **_of(jobs))


def begin(job: Job) -> Statement[object]:
    return SQL["begin"].bind(object, id=job.id, epoch=job.epoch)


def renew(jobs: Sequence[Job], lease: timedelta) -> Statement[Renewed]:
    return SQL["renew"].bind(Renewed, lease=lease, **_of(jobs))


def find_cancelled(ids: Sequence[int]) -> Statement[int]:
    return SQL["find_cancelled"].bind(int, ids=list(ids))


def note_cron(name: str, expression: str) -> Statement[object]:
    return SQL["note_cron"].bind(object, name=name, expression=expression)


def read_cron(name: str) -> Statement[datetime]:
    return SQL["read_cron"].bind(datetime, name=name)


def fire_cron(  # noqa: PLR0913 - the columns
    name: str, expression: str, for_time: datetime, *, queue: str, kind: str, payload: str, priority: int
) -> Statement[bool]:
    return SQL["fire_cron"].bind(
        bool,
        name=name,
        expression=expression,
        for_time=for_time,
        queue=queue,
        kind=kind,
        payload=payload,
        priority=priority,
    )


def read_clock() -> Statement[datetime]:
    return SQL["read_clock"].bind(datetime)


def forget(kept: timedelta) -> Statement[bool]:
    """Whether that was all."""
    return SQL["forget"].bind(bool, kept=kept)


def keep_days(kept: timedelta) -> Statement[int]:
    return SQL["keep_days"].bind(int, kept=kept)


def _times(jobs: Sequence[Job]) -> list[datetime]:
    return [job.claimed_at for job in jobs]


def _of(jobs: Sequence[Job]) -> dict[str, object]:
    return {"ids": [job.id for job in jobs], "epochs": [job.epoch for job in jobs]}
