"""How long to wait before trying again: longer each time up to a limit, and never the same for many at once."""

import random
from dataclasses import dataclass
from datetime import timedelta


@dataclass(slots=True)
class Backoff:
    """Between half and the whole of a ceiling that doubles from `first` to `most`."""

    first: timedelta = timedelta(milliseconds=100)
    most: timedelta = timedelta(seconds=30)
    attempt: int = 0

    def next(self) -> timedelta:
        """The next waiting time."""
        ceiling = min(self.most, self.first * 2.0 ** min(self.attempt, 32))
        self.attempt += 1
        return ceiling * random.uniform(0.5, 1)
