"""Drives the Creek consumer in one process, without Spark: its reader, its sink and its loader, batch by batch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwater.postgres.connect import connect_sync
from headwater.spark.creek_apply.keeping import keep
from headwater.spark.creek_apply.settings import ApplySettings
from headwater.spark.creek_apply.sink import ApplySink
from headwater.spark.creek_apply.snapshot import SnapshotLoader
from headwater.spark.sinks.sink import Written
from headwater.spark.sources.creek.offset import Offset
from headwater.spark.sources.creek.options import access_options, parse_options
from headwater.spark.sources.creek.source import CreekReader


class Partitions:
    """As much of a DataFrame as the sink asks for: each partition goes through a task of its own."""

    def __init__(self, parts: list[list[pa.RecordBatch]]) -> None:
        self._parts = parts

    def mapInArrow(self, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _schema: Any) -> "Partitions":  # noqa: N802
        return Partitions([list(task(iter(part))) for part in self._parts])

    def coalesce(self, _count: int) -> "Partitions":
        return Partitions([[batch for part in self._parts for batch in part]])

    def collect(self) -> list[dict[str, Any]]:
        return [row for part in self._parts for batch in part for row in batch.to_pylist()]


class Numbers:
    """As much of a session as the loader asks for."""

    def range(self, start: int, end: int, _step: int, _parts: int) -> Partitions:
        return Partitions([[pa.RecordBatch.from_pydict({"id": [number]})] for number in range(start, end)])


@dataclass
class Drive:
    """A consumer that goes on as far as a test lets it. `fails` raises in the midst of a batch, as if the process died."""

    settings: ApplySettings
    stream: str = "CREEK_wal"
    options: dict[str, str] = field(default_factory=dict)
    at: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.sink = ApplySink(self.settings)
        self.sink.open()
        with connect_sync(self.settings.url) as connection:
            keep(self.settings, connection, self.sink.epoch)
        self.reader = self._reader()

    @property
    def loader(self) -> SnapshotLoader:
        return SnapshotLoader(Numbers(), self.settings)  # type: ignore[arg-type]

    def step(self) -> tuple[Offset, Written] | None:
        """One batch, if there is one."""
        found = self.plan()
        return None if found is None else (found[0], self.deliver(*found))

    def plan(self) -> tuple[Offset, Partitions] | None:
        """The next batch, read but not applied."""
        at = self.at or self.reader.initialOffset()
        end = self.reader.latestOffset(at, self.reader.getDefaultReadLimit())
        if end == at:
            self.at = at
            return None
        parts = [list(self.reader.read(part)) for part in self.reader.partitions(at, end)]
        self.at = end
        return Offset.from_json(end), Partitions(parts)

    def deliver(self, end: Offset, parts: Partitions) -> Written:
        return self.sink.write(parts, end)  # type: ignore[arg-type]

    def catch_up(self, batches: int = 200) -> Written:
        """Go on until there is nothing left to do."""
        written = Written()
        for _ in range(batches):
            found = self.step()
            if found is None:
                return written
            written += found[1]
        raise AssertionError(f"there is more to do after {batches} batches")

    def restart(self) -> "Drive":
        """Another process takes over, and knows only what is in the target."""
        self.close()
        return Drive(self.settings, self.stream, self.options)

    def close(self) -> None:
        self.reader.stop()
        self.sink.close()

    def _reader(self) -> CreekReader:
        given = {
            **access_options(self.settings.access),
            "namespace": self.settings.namespace,
            "generation": self.settings.generation.value,
            "stream": self.stream,
            "shape": "wire",
            "subscriptionsUrl": self.settings.url,
            **self.options,
        }
        return CreekReader(parse_options(given))
