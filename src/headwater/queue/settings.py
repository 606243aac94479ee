"""The settings of workers and of those who enqueue one by one. Durations may be given as texts, such as `30s`."""

from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headwater.errors import SettingsError
from headwater.model.amount import parse_duration
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

    if TYPE_CHECKING:
        # For those who check types: what may be given is more than what is there afterwards.
        def __init__(  # noqa: PLR0913 - the fields
            self,
            *,
            concurrency: int = ...,
            lease: timedelta | str = ...,
            poll: timedelta | str = ...,
            claim_most: int = ...,
            settle_most: int = ...,
            settle_after: timedelta | str = ...,
            stop_within: timedelta | str = ...,
            overdue: timedelta | str = ...,
            keep_done: timedelta | str = ...,
            maintain_every: timedelta | str = ...,
            answer_within: timedelta | str = ...,
            listens: bool = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        owner = "WorkerSettings"
        _read_texts(self)
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

    if TYPE_CHECKING:

        def __init__(  # noqa: PLR0913 - the fields
            self,
            *,
            linger: timedelta | str = ...,
            batch_jobs: int = ...,
            waiting_jobs: int = ...,
            rings: bool = ...,
            ring_every: timedelta | str = ...,
            give_up_after: timedelta | str = ...,
            close_within: timedelta | str = ...,
            answer_within: timedelta | str = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        _read_texts(self)
        faults = [*find_strangers(self, "EnqueuerSettings")] or [
            *find_too_small(self, "EnqueuerSettings", {"linger": timedelta(0)})
        ]
        if faults:
            raise SettingsError(*faults)


def _read_texts(settings: Any) -> None:
    """Have durations in place of their texts; what is none stays, to be told of with the rest."""
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.type is timedelta and isinstance(value, str):
            with suppress(ValueError):
                object.__setattr__(settings, one.name, parse_duration(value))
