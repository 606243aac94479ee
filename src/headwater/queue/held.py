"""The jobs that a worker has: those that wait, those in hand, and for how long each is known to be its own."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from headwater.queue.job import Job


@dataclass(slots=True, eq=False)
class Holding:
    """A job until its outcome is written. Times are those of the monotonic clock."""

    job: Job
    lease_seconds: float
    renewed_at: float
    began_at: float | None = None
    # After that it is not renewed any more: a handler that blocks the event loop cannot be stopped, and others may try.
    ends_at: float = float("inf")
    task: "asyncio.Task[None] | None" = None
    is_cancelled: bool = False
    is_lost: bool = False

    def is_ours(self, now: float) -> bool:
        """Whether nobody else can have it yet: a process that stood still for a lease does not know."""
        return not self.is_lost and now < self.renewed_at + self.lease_seconds

    def interrupt(self) -> None:
        """Stop the handler, if it runs."""
        if self.task is not None:
            self.task.cancel()


class Held:
    """Written by the event loop, and read by the thread that renews leases."""

    def __init__(self, lease: timedelta) -> None:
        self._lease_seconds = lease.total_seconds()
        self._holdings: dict[int, Holding] = {}

    def __len__(self) -> int:
        return len(self._holdings)

    def add(self, jobs: Iterable[Job], now: float) -> list[Holding]:
        added = [Holding(job, self._lease_seconds, now) for job in jobs]
        for holding in added:
            self._holdings[holding.job.id] = holding
        return added

    def remove(self, holding: Holding) -> None:
        # It may have been claimed again since, by this same worker.
        if self._holdings.get(holding.job.id) is holding:
            del self._holdings[holding.job.id]

    def find(self, id: int) -> Holding | None:
        return self._holdings.get(id)

    @property
    def ids(self) -> list[int]:
        return list(self._holdings)

    def due(self, now: float, *, is_blocked: bool = False) -> list[Holding]:
        """Those whose lease has lasted for a third of its time; two renewals may fail.

        While the event loop is blocked, those that were not begun are left to others.
        """
        third = self._lease_seconds / 3
        # A copy, which the event loop does not change meanwhile.
        everything = list(self._holdings.values())
        return [
            one
            for one in everything
            if now - one.renewed_at >= third
            and now < one.ends_at
            and not one.is_lost
            and not (is_blocked and one.began_at is None)
        ]
