"""How many jobs to have claimed ahead of those in hand, by how fast they are done. Pure."""

from dataclasses import dataclass
from typing import Final

# Jobs for so long: enough for a round trip or two, and little for others to wait for.
_AHEAD_SECONDS: Final = 0.2
# How much of the old rate is kept after a second.
_MEMORY: Final = 0.3


@dataclass(slots=True)
class Pace:
    """At most `most` are claimed ahead, and none where each takes long: another worker may have time for them."""

    most: int
    _since: float
    _done: int = 0
    _rate: float = 0.0

    def note(self, now: float) -> None:
        """A job is done."""
        self._done += 1
        elapsed = now - self._since
        if elapsed >= 1.0 or self._done >= self.most:
            rate = self._done / max(elapsed, 1e-3)
            kept = _MEMORY ** min(elapsed, 10.0)
            self._rate = kept * self._rate + (1 - kept) * rate if self._rate else rate
            self._done, self._since = 0, now

    def ahead(self, now: float) -> int:
        """How many should wait; a rate of before is none while nothing is done."""
        elapsed = now - self._since
        rate = self._rate if elapsed < 1.0 else min(self._rate, self._done / elapsed)
        return min(self.most, round(rate * _AHEAD_SECONDS))
