"""The settings of workers and of those who enqueue one by one."""

from dataclasses import dataclass
from datetime import timedelta

from headwater.errors import SettingsError
from headwater.model.settings import find_strangers, find_too_small


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker works.

    It has `concurrency` jobs in hand at once, and claims some ahead. A claim lasts for `lease` and is renewed while the job
    is here; a job whose worker is gone is another's after that time. It looks for jobs every `poll` if nobody wakes it.
    Outcomes are written together, `settle_most` at a time or after `settle_after`: that is what a crash may have done again.
    When it is stopped it waits for the jobs in hand up to `stop_within`. Jobs that are due for longer than `overdue` and
    nobody has are told of. Finished jobs are kept for `keep_done`.
    """

    concurrency: int = 64
    lease: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(seconds=1)
    claim_most: int = 1000
    settle_most: int = 500
    settle_after: timedelta = timedelta(milliseconds=2)
    stop_within: timedelta = timedelta(seconds=30)
    overdue: timedelta = timedelta(minutes=1)
    keep_done: timedelta = timedelta(days=7)
    maintain_every: timedelta = timedelta(hours=1)
    answer_within: timedelta = timedelta(seconds=30)
    listens: bool = True

    def __post_init__(self) -> None:
        owner = "WorkerSettings"
        faults = [*find_strangers(self, owner)] or [*find_too_small(self, owner)]
        if not faults and self.lease < timedelta(milliseconds=100):
            faults = [f"lease of {owner} is {self.lease.total_seconds():g} s; give 0.1 s or more"]
        if faults:
            raise SettingsError(*faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuerSettings:
    """How single jobs are gathered: for `linger` after the first, up to `batch_jobs`; at most `waiting_jobs` wait at once.

    While the server cannot be reached they are tried again for `give_up_after`.
    """

    linger: timedelta = timedelta(milliseconds=1)
    batch_jobs: int = 1000
    waiting_jobs: int = 10_000
    rings: bool = True
    ring_every: timedelta = timedelta(milliseconds=5)
    give_up_after: timedelta = timedelta(seconds=30)
    close_within: timedelta = timedelta(seconds=30)
    answer_within: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        faults = [*find_strangers(self, "EnqueuerSettings")] or [
            *find_too_small(self, "EnqueuerSettings", {"linger": timedelta(0)})
        ]
        if faults:
            raise SettingsError(*faults)
