"""What a consumer has applied since it began, for monitors."""

from collections import Counter
from threading import Lock

from headwater.creek.consumer.mapping import TableMapping
from headwater.spark.sinks.sink import Written
from headwater.spark.sources.creek.offset import Step


class Counts:
    """Counted by several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_table: Counter[tuple[str, TableMapping]] = Counter()
        self.applied = 0
        self.skipped = 0
        self.letters = 0

    def add(self, step: Step | None, written: Written) -> None:
        """A batch that was applied; what had been applied before is not counted again by table."""
        with self._lock:
            self._add(written)
            if step is not None and written.changes:
                for table, count in step.changes.items():
                    self._by_table["wal", TableMapping.parse(table)] += count

    def add_snapshot(self, table: TableMapping, written: Written) -> None:
        with self._lock:
            self._add(written)
            self._by_table["snap", table] += written.changes

    @property
    def by_table(self) -> dict[tuple[str, TableMapping], int]:
        """Messages applied, by the kind of stream and table."""
        with self._lock:
            return dict(self._by_table)

    def _add(self, written: Written) -> None:
        self.applied += written.changes
        self.skipped += written.skipped
        self.letters += written.letters
