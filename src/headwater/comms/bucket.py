"""How many messages a provider is sent per second: tokens that fill up with time, and who has to wait for one."""

import time
from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """At most `burst` tokens, of which `rate` come back each second. Pure: the time is given, and never goes back."""

    rate: float
    burst: float
    tokens: float
    filled_at: float

    @classmethod
    def full(cls, rate: float, burst: float, now: float) -> "Bucket":
        return cls(rate, burst, burst, now)

    def take(self, now: float) -> float:
        """Take a token, and return after how many seconds it is there: one that comes later is promised already."""
        self.tokens = min(self.burst, self.tokens + (now - self.filled_at) * self.rate) - 1
        self.filled_at = now
        return max(0.0, -self.tokens / self.rate)

    def give_back(self) -> None:
        """By one who took a token and did not use it."""
        self.tokens = min(self.burst, self.tokens + 1)


class Limiter:
    """Tells each how long to wait for its turn, in the order in which they ask; without a rate nobody waits."""

    def __init__(self, rate: float | None) -> None:
        # Messages of one second may go at once, so that a rate of 100 is no message every 10 ms.
        self._bucket = None if rate is None else Bucket.full(rate, max(1.0, rate), time.monotonic())

    def reserve(self) -> float:
        """After how many seconds it is this one's turn."""
        return 0.0 if self._bucket is None else self._bucket.take(time.monotonic())

    def give_back(self) -> None:
        """By one who does not wait for its turn."""
        if self._bucket is not None:
            self._bucket.give_back()
