"""What a worker knows of the jobs that it does: a function for each kind, and the jobs that come by the clock. Pure."""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headwater.errors import JobError, SettingsError
from headwater.queue.job import Job, NewJob, encode_payload
from headwater.queue.outcome import Outcome, as_duration
from headwater.queue.retry import FullJitter, RetryPolicy

Function: TypeAlias = Callable[[Job], Awaitable[Outcome | None]]

TIMEOUT: Final = "1m"


@dataclass(frozen=True, slots=True)
class Handler:
    """A function for jobs of a kind, how long it may take, and how often they are tried."""

    kind: str
    function: Function
    timeout: timedelta
    retry: RetryPolicy


@dataclass(frozen=True, slots=True)
class Periodic:
    """A job that is enqueued at the times of a cron expression."""

    name: str
    expression: str
    zone: ZoneInfo
    job: NewJob
    payload: str

    def last(self, before: datetime) -> datetime:
        """The latest of its times that is not after a time."""
        from cronsim import CronSim

        # It begins strictly before what it is given.
        begin = (before.astimezone(UTC) + timedelta(microseconds=1)).astimezone(self.zone)
        times = CronSim(self.expression, begin, reverse=True)
        last = self._first(times, lambda time: time <= before.astimezone(UTC))
        # Backwards it means the second of such hours.
        while (following := self.next(last)) <= before:
            last = following
        return last

    def next(self, after: datetime) -> datetime:
        from cronsim import CronSim

        times = CronSim(self.expression, after.astimezone(self.zone))
        return self._first(times, lambda time: time > after.astimezone(UTC))

    def _first(self, times: Iterable[datetime], is_right: Callable[[datetime], bool]) -> datetime:
        """Of those of a clock that is set back: an hour comes twice then, and cronsim means the first."""
        return next(time for time in (one.astimezone(UTC) for one in times) if is_right(time))


def make_handler(kind: str, function: Function, timeout: timedelta | str, retry: RetryPolicy | None) -> Handler:
    """Raises JobError for what cannot be one."""
    if not isinstance(kind, str) or not kind:
        raise JobError(f"a handler is for a kind of jobs, a text, and not for {kind!r}")
    if not inspect.iscoroutinefunction(function):
        raise JobError(
            f"the handler of {kind!r} is no async function; write `async def`, and wrap what blocks in asyncio.to_thread"
        )
    if retry is not None and (isinstance(retry, type) or not callable(getattr(retry, "wait", None))):
        raise JobError(f"retry of the handler of {kind!r} is {retry!r}; give a policy, such as FullJitter(most=5)")
    limit = as_duration(timeout, f"timeout of the handler of {kind!r}")
    if not limit:
        raise JobError(f"timeout of the handler of {kind!r} is 0; give a time that is more")
    return Handler(kind, function, limit, retry or FullJitter())


def make_periodic(expression: str, job: NewJob, zone: str, name: str | None) -> Periodic:
    """Raises JobError for what cannot be one."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as exc:
        raise SettingsError(
            "cronsim is needed for periodic jobs, and is not installed; run `pip install 'headwater[queue]'`"
        ) from exc
    payload = encode_payload(job)
    try:
        CronSim(expression, datetime(2026, 1, 1))
    except (CronSimError, AttributeError, TypeError) as exc:
        raise JobError(
            f"{expression!r} is no cron expression ({exc}); write five fields, such as '*/5 * * * *' for every five minutes"
        ) from exc
    try:
        found = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as exc:
        raise JobError(f"{zone!r} is no time zone; give one such as 'UTC' or 'Europe/Oslo'") from exc
    return Periodic(name or f"{job.queue}/{job.kind}/{expression}/{zone}", expression, found, job, payload)
