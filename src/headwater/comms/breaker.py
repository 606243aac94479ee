"""When a provider is away, or wants to be left alone, messages wait for it: they do not all lose an attempt to find out."""

import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from headwater.comms.outcome import Outcome
from headwater.postgres.backoff import Backoff

_BACKOFF: Final = Backoff(first=timedelta(seconds=1), longest=timedelta(seconds=30))
# What a provider asks for beyond that is for the message; others may try sooner.
LONGEST_PAUSE: Final = timedelta(seconds=60)


@dataclass(slots=True)
class Breaker:
    """Until when nothing is sent. Pure: the time is given."""

    backoff: Backoff = _BACKOFF
    failures: int = 0
    closed_until: float = field(default=float("-inf"))

    def wait(self, now: float) -> float:
        """After how many seconds messages may be sent again."""
        return max(0.0, self.closed_until - now)

    def note(self, outcome: Outcome, now: float, jitter: float | None = None) -> None:
        """Of an attempt that says whether the provider is there."""
        if not outcome.is_away:
            self.failures = 0
            return
        if now < self.closed_until and outcome.retry_after is None:
            # It was under way when another one has found out.
            return
        self.failures += 1
        pause = self.backoff.after(self.failures, random.random() if jitter is None else jitter)
        if outcome.retry_after is not None:
            pause = outcome.retry_after
        self.closed_until = max(self.closed_until, now + min(pause, LONGEST_PAUSE).total_seconds())
