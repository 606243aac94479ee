"""When a job that failed is tried again. Pure."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from headwater.errors import JobError
from headwater.queue.outcome import as_duration


class RetryPolicy(Protocol):
    """How long to wait after so many attempts, or None if they were enough; `chance` is from 0 to 1."""

    def wait(self, attempts: int, chance: float) -> timedelta | None: ...


@dataclass(frozen=True, slots=True)
class FullJitter:
    """At most `most` attempts; between them some part of a time that doubles from `base` to `longest`.

    Any part, so that many jobs that failed together do not come again together.
    """

    base: timedelta | str = "1s"
    most: int = 5
    longest: timedelta | str = "1h"

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", as_duration(self.base, "base of FullJitter"))
        object.__setattr__(self, "longest", as_duration(self.longest, "longest of FullJitter"))
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 1:
            raise JobError(f"most of FullJitter is {self.most!r}; give how many attempts there are at most, 1 or more")

    def wait(self, attempts: int, chance: float) -> timedelta | None:
        if attempts >= self.most:
            return None
        assert isinstance(self.base, timedelta) and isinstance(self.longest, timedelta)
        # The exponent is bounded only so that a float can hold the product before it is cut.
        whole = min(self.longest.total_seconds(), self.base.total_seconds() * 2.0 ** min(attempts - 1, 64))
        return timedelta(seconds=whole * chance)
