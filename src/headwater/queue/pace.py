"""How many jobs to have claimed ahead, by how fast they are done. Pure."""

from dataclasses import dataclass
from typing import Final

# Jobs for so long: enough for a round trip or two, and little against any lease.
_AHEAD_SECONDS: Final = 0.2
# How much of the old rate is kept after a second.
_MEMORY: Final = 0.3


@dataclass(slots=True)
class Pace:
    """At least `least` jobs wait, at most `most`."""

    least: int
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

    @property
    def ahead(self) -> int:
        """How many should wait."""
        return max(self.least, min(self.most, round(self._rate * _AHEAD_SECONDS)))
