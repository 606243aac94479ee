"""Where a worker looks for due jobs of a queue, so that what is finished costs nothing. Pure.

Finished jobs are in the way of whoever looks from the beginning for as long as an old transaction is open, since they
cannot be vacuumed. So only a sweep begins there; in between, claims look at what became due of late, or, while there is more
than was taken, after what was taken last. What those pass over, such as jobs of transactions that took long to commit, is
found by the next sweep.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from headwater.queue.job import Job

_LEVELS: Final = 10
# A sweep that takes long, because of what cannot be vacuumed, is made so much less often.
_SHARE: Final = 20
# However long one took: an event loop that was blocked meanwhile says nothing of the server.
_MOST_SECONDS: Final = 30.0


@dataclass(slots=True)
class Place:
    """Of one queue. Times are those of a clock that is passed in."""

    poll_seconds: float
    run_ats: list[datetime | None] = field(default_factory=lambda: [None] * _LEVELS)
    ids: list[int | None] = field(default_factory=lambda: [None] * _LEVELS)
    # Whether there may be more than was taken the last time; and also before the places, where only a sweep looks.
    has_more: bool = True
    has_older: bool = True
    sweep_at: float = 0.0

    def begin(self, now: float) -> bool:
        """Whether the claim that begins is a sweep. Who asks for one until it has ended means the next."""
        if now < self.sweep_at:
            return False
        self.sweep_at = float("inf")
        return True

    def note(self, jobs: Sequence[Job], most: int, *, swept: bool, began: float, ended: float) -> None:
        """Some jobs were claimed, of `most` that were asked for."""
        self.has_more = len(jobs) >= most
        if swept:
            self.has_older = self.has_more
            self.sweep_at = min(self.sweep_at, began + max(self.poll_seconds, min(_SHARE * (ended - began), _MOST_SECONDS)))
        elif self.has_older and not self.has_more:
            self.sweep_at = ended
        if swept or not self.has_more:
            self._forget()
        if self.has_more:
            for job in jobs:
                self._pass(job)

    def _pass(self, job: Job) -> None:
        level = job.priority
        run_at, id = self.run_ats[level], self.ids[level]
        if run_at is None or id is None or (job.run_at, job.id) > (run_at, id):
            self.run_ats[level], self.ids[level] = job.run_at, job.id

    def _forget(self) -> None:
        self.run_ats, self.ids = [None] * _LEVELS, [None] * _LEVELS
