"""How fast and how soon changes were delivered, from looks at both ends. Pure; time is passed in."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

# The rate that is shown is that of the last seconds: steady enough to read, quick enough to follow a burst.
_RATE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Large:
    """The large transaction: its rows, and how long after its commit all of them were in the target."""

    rows: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0


class Tally:
    """How far the target was behind at each look, in seconds, and how many changes came in a second.

    The target is behind by the age of the last change that it has, unless it has them all, as it had when this began.
    """

    def __init__(self, began: datetime) -> None:
        self._newest = began
        self._seen: deque[tuple[datetime, int]] = deque()
        self.lags: list[float] = []
        self.rate = 0.0

    @property
    def lag(self) -> float:
        return self.lags[-1] if self.lags else 0.0

    def look(self, now: datetime, *, written: int, delivered: int, committed_at: datetime | None) -> None:
        """So many changes are written and delivered now, the last of these committed at that time."""
        self._newest = max(self._newest, committed_at or self._newest)
        self.lags.append(max(0.0, (now - self._newest).total_seconds()) if delivered < written else 0.0)
        self._seen.append((now, delivered))
        while len(self._seen) > 2 and (now - self._seen[1][0]).total_seconds() >= _RATE_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        seconds = (now - since).total_seconds()
        self.rate = (delivered - before) / seconds if seconds > 0 else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The least of the values that a share of them does not exceed; 0 when there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
