"""How long to wait before trying again: longer after each failure up to a limit, and never the same for many at once."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    """Between half and the whole of a time that doubles from `first` to `longest`."""

    first: timedelta = timedelta(milliseconds=100)
    longest: timedelta = timedelta(seconds=30)

    def after(self, failures: int, jitter: float) -> timedelta:
        """The wait after so many failures in a row, less a part of its half by `jitter` (0 to 1)."""
        # The exponent is bounded only so that a float can hold the product before it is cut.
        doubled = self.first.total_seconds() * 2.0 ** min(failures - 1, 64)
        return timedelta(seconds=min(self.longest.total_seconds(), doubled) * (1 - jitter / 2))
