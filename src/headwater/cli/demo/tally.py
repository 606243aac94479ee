"""What was captured, counted: changes by table and kind, transactions, how fast and how soon. Pure; time is passed in."""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from headwater.model import Lsn, Op

# The rate that is shown is that of the last second: steady enough to read, quick enough to follow a burst.
_RATE_SECONDS = 1.0


@dataclass(slots=True)
class _Transaction:
    """One that is being captured: `taken_at` is when the first of it was there."""

    committed_at: datetime
    taken_at: datetime
    changes: int = 0


@dataclass(frozen=True, slots=True)
class Large:
    """The largest transaction: its changes, how long they took once the first was there, and how long after the commit."""

    changes: int
    seconds: float
    seconds_after_commit: float

    @property
    def per_second(self) -> float:
        return self.changes / self.seconds if self.seconds > 0 else 0.0


class Tally:
    """Counts changes as they are applied; `settle` ends the transactions that they belong to."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, Op]] = Counter()
        self.latencies: list[float] = []
        self.largest = Large(0, 0.0, 0.0)
        self._open: dict[Lsn, _Transaction] = {}

    @property
    def changes(self) -> int:
        return self.counts.total()

    @property
    def transactions(self) -> int:
        return len(self.latencies)

    def begin(self, commit_lsn: Lsn, committed_at: datetime, taken_at: datetime) -> None:
        """Changes of this transaction follow; it may have begun before."""
        self._open.setdefault(commit_lsn, _Transaction(committed_at, taken_at))

    def add(self, commit_lsn: Lsn, table: str, op: Op, count: int = 1) -> None:
        self.counts[table, op] += count
        self._open[commit_lsn].changes += count

    def settle(self, now: datetime) -> None:
        """All transactions that have begun are applied, as a whole."""
        for transaction in self._open.values():
            latency = (now - transaction.committed_at).total_seconds()
            self.latencies.append(latency)
            if transaction.changes > self.largest.changes:
                self.largest = Large(transaction.changes, (now - transaction.taken_at).total_seconds(), latency)
        self._open.clear()


class Rate:
    """How many a second, over the last one."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, seconds: float, count: int) -> float:
        """The rate, now that there are so many at this time."""
        self._seen.append((seconds, count))
        while len(self._seen) > 2 and seconds - self._seen[1][0] >= _RATE_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        return (count - before) / (seconds - since) if seconds > since else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The least of the values that a share of them does not exceed; 0 when there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
