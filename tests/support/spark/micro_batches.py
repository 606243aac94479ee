"""A query of Spark without Spark: its calls to the reader of a source, in their order, and its logs of offsets and commits.

A query costs seconds in Spark, most of them for processes that it starts, and milliseconds here. What a test says about the
planner and its checkpoint it can say here; what it says about Spark needs Spark.
"""

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

Offset = dict[str, Any]
# The end of a batch, and the rows of its partitions, in their order.
Take = Callable[[Offset, Sequence[Sequence[pa.RecordBatch]]], None]


class Source(Protocol):
    """A data source of ours, as Spark uses it."""

    def schema(self) -> Any: ...

    def streamReader(self, schema: Any) -> Any: ...  # noqa: N802 - Spark's name


class BatchLog:
    """The logs of a checkpoint directory, in the files that Spark has for them."""

    def __init__(self, directory: Path) -> None:
        self._offsets, self._commits = directory / "offsets", directory / "commits"
        for folder in (self._offsets, self._commits):
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def committed(self) -> Offset | None:
        """The end of the last batch that is committed."""
        return self._end(self._newest(self._commits))

    @property
    def uncommitted(self) -> Offset | None:
        """The end of a batch that is logged, and not committed."""
        newest = self._newest(self._offsets)
        return None if newest == self._newest(self._commits) else self._end(newest)

    def add(self, end: Offset) -> None:
        (self._offsets / str(self._newest(self._offsets) + 1)).write_text(json.dumps(end))

    def commit(self) -> None:
        (self._commits / str(self._newest(self._offsets))).touch()

    def _end(self, number: int) -> Offset | None:
        if number < 0:
            return None
        found: Offset = json.loads((self._offsets / str(number)).read_text())
        return found

    @staticmethod
    def _newest(folder: Path) -> int:
        return max((int(file.name) for file in folder.iterdir()), default=-1)


def run_available(source: Source, directory: Path, take: Take) -> None:
    """Read all that is there by now, as with the trigger `availableNow`; a batch is committed when `take` returns."""
    log, reader = BatchLog(directory), source.streamReader(source.schema())

    def deliver(start: Offset, end: Offset) -> None:
        partitions = reader.partitions(start, end)
        # Tasks have copies of their own, which have opened nothing.
        task = pickle.loads(pickle.dumps(reader))
        take(end, [list(task.read(pickle.loads(pickle.dumps(each)))) for each in partitions])
        log.commit()

    try:
        reader.prepareForTriggerAvailableNow()
        start, logged = log.committed or reader.initialOffset(), log.uncommitted
        if logged is not None:
            deliver(start, logged)
            start = logged
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            # As text, which is how Spark keeps it between two calls.
            end = json.loads(json.dumps(end))
            log.add(end)
            deliver(start, end)
            start = end
    finally:
        reader.stop()
