"""What a producer has done for those who asked for snapshots, for whoever shows it, and what it still owes them."""

from collections import Counter
from collections.abc import Mapping
from threading import Lock


class SnapshotCounts:
    """Counts since the start, by table as `schema.table`; many threads add to it.

    It outlives the services of a pipeline, which end, and begin anew, when a broker is away.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._broken: dict[str, dict[str, str]] = {}
        self._rows: Counter[str] = Counter()
        self._completed: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    @property
    def rows(self) -> Mapping[str, int]:
        """Rows that are stored in topics."""
        return self._copied(self._rows)

    @property
    def completed(self) -> Mapping[str, int]:
        """Snapshots that have ended in EOF."""
        return self._copied(self._completed)

    @property
    def failed(self) -> Mapping[str, int]:
        """Snapshots that were begun and broken off; what was refused at once is not among them."""
        return self._copied(self._failed)

    def broken(self, where: str) -> dict[str, str]:
        """Topics at one place that have broken off, and why, until their readers are told; for one service to change."""
        with self._lock:
            return self._broken.setdefault(where, {})

    def add_rows(self, table: str, count: int) -> None:
        with self._lock:
            self._rows[table] += count

    def add_end(self, table: str, *, is_complete: bool) -> None:
        with self._lock:
            (self._completed if is_complete else self._failed)[table] += 1

    def _copied(self, counter: Counter[str]) -> Mapping[str, int]:
        with self._lock:
            return dict(counter)
