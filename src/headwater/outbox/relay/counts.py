"""What a relay counts while it runs."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

# Seconds from the commit of a transaction to the broker's confirm: from what a local broker takes to a lease.
CONFIRM_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class Counts:
    """Since the relay was made; each is changed by one task, but for what any thread lets go."""

    published: int = 0
    # Messages that the broker had already, where it can tell.
    duplicates: int = 0
    nacks: int = 0
    returns: int = 0
    dead: int = 0
    postponed: int = 0
    # Searches of the table, and what they found.
    sweeps: int = 0
    revived: int = 0
    let_go: int = 0
    # Found published when they were to be marked as such: somebody else has sent them too, or nobody knows.
    suspected_duplicates: int = 0
    restarts: int = 0
    in_flight: int = 0
    saves: int = 0
    # By bucket, the last one for all that took longer, and their sum.
    confirm_times: list[int] = field(default_factory=lambda: [0] * (len(CONFIRM_SECONDS) + 1))
    confirm_seconds: float = 0.0
    # Age of the oldest event that waits, and when that was measured, by the monotonic clock.
    oldest_seconds: float | None = None
    oldest_measured: float = 0.0
    # Neither is known to be there before it was reached.
    is_broker_up: bool = False
    is_database_up: bool = False

    def confirmed(self, seconds: float) -> None:
        """One event, so long after its commit."""
        self.confirm_times[bisect_left(CONFIRM_SECONDS, seconds)] += 1
        self.confirm_seconds += seconds

    def oldest(self, now: float) -> float | None:
        """Age of the oldest event that waits; while the database cannot be asked, as old as it may be by now."""
        if self.oldest_seconds is None or self.is_database_up:
            return self.oldest_seconds
        return self.oldest_seconds + now - self.oldest_measured
