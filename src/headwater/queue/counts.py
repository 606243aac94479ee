"""What a worker has counted, for metrics, for its line on the terminal and for tests."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

# Bounds of the histograms, in seconds.
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(slots=True)
class Times:
    """A histogram: how many were within each bound, and after the last one."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def note(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class Counts:
    """Numbers since the worker was started, but for the last four."""

    claimed: int = 0
    done: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    cancelled: int = 0
    released: int = 0
    timeouts: int = 0
    # Outcomes that were refused, since the job was another's by then or finished: it may have been done twice.
    suspected_duplicates: int = 0
    leases_lost: int = 0
    renewed: int = 0
    polls: int = 0
    sweeps: int = 0
    periodic: int = 0
    schedule_to_claim: Times = field(default_factory=Times)
    claim_to_done: Times = field(default_factory=Times)
    schedule_to_done: Times = field(default_factory=Times)
    waiting: int = 0
    running: int = 0
    overdue_seconds: float = 0.0
    is_database_up: bool = True
