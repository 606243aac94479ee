"""A replica in memory that is fed by the source's reader as a sink would be: attempts aside, swapped in when complete.

It counts what a join of snapshot and stream must not have: rows that are inserted twice, and changes of rows that are not
there.
"""

from dataclasses import dataclass, field
from typing import Any

from headwater.spark.frame import Chunk, unpack
from headwater.spark.sources.changes import ChangesReader, LanePartition
from headwater.spark.sources.offset import Offset
from headwater.spark.sources.step import step_between
from tests.support.capture.change_streams import changes_of_frame
from tests.support.waiting import eventually

Row = dict[str, Any]
Name = tuple[str, str]


@dataclass
class Replica:
    """Tables by key. `repeated` and `missed` count changes that do not fit what is there."""

    key: str = "id"
    tables: dict[Name, dict[str, Row]] = field(default_factory=dict)
    aside: dict[str, dict[Name, dict[str, Row]]] = field(default_factory=dict)
    repeated: list[Any] = field(default_factory=list)
    missed: list[Any] = field(default_factory=list)
    swaps: int = 0
    dead_batches: int = 0

    def deliver(self, reader: ChangesReader, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Take one batch, as Spark would hand it on."""
        step = step_between(Offset.from_json(start), Offset.from_json(end))
        if step.completes and step.load is not None:
            self._swap(step.load.attempt, step.load.tables)
        partitions = reader.partitions(start, end)
        if (
            step.load is not None
            and step.last > step.first
            and not any(not isinstance(p, LanePartition) for p in partitions)
        ):
            self.dead_batches += 1
        for partition in partitions:
            if isinstance(partition, LanePartition):
                for frame in partition.frames:
                    for change in changes_of_frame(frame):
                        self._apply(change)
            else:
                for batch in reader.read(partition):
                    for packed in batch.column("frame").to_pylist():
                        chunk = unpack(packed)
                        assert isinstance(chunk, Chunk)
                        self._load(chunk)

    def _load(self, chunk: Chunk) -> None:
        name = (chunk.relation.schema, chunk.relation.name)
        rows = self.aside.setdefault(chunk.attempt, {}).setdefault(name, {})
        for row in chunk.rows.to_pylist():
            if row[self.key] in rows:
                self.repeated.append(("chunk", name, row))
            rows[row[self.key]] = row

    def _swap(self, attempt: str, tables: tuple[Name, ...]) -> None:
        loaded = self.aside.pop(attempt, {})
        for name in tables:
            self.tables[name] = loaded.get(name, {})
        self.swaps += 1

    def _apply(self, change: Any) -> None:
        rows = self.tables.setdefault((change.schema, change.table), {})
        after = None if change.after is None else {name: _text(value) for name, value in change.after.items()}
        before = change.before or {}
        match change.op:
            case "c":
                assert after is not None
                if after[self.key] in rows:
                    self.repeated.append((change.table, after, int(change.position.commit_lsn)))
                rows[after[self.key]] = after
            case "u" | "u_pk":
                assert after is not None
                old = _text(before[self.key]) if self.key in before else after[self.key]
                if rows.pop(old, None) is None:
                    self.missed.append((change.table, old, after, int(change.position.commit_lsn)))
                rows[after[self.key]] = after
            case "d":
                if rows.pop(_text(before[self.key]), None) is None:
                    self.missed.append((change.table, before, int(change.position.commit_lsn)))
            case "t":
                rows.clear()


def _text(value: Any) -> Any:
    """What the server wrote, from its JSON form: these tests have numbers and plain text alone."""
    if not isinstance(value, str) or value == "null":
        return None
    return value[1:-1] if value.startswith('"') else value


def follow(
    reader: ChangesReader, replica: Replica, start: dict[str, Any], until: Any, seconds: float = 60
) -> dict[str, Any]:
    """Deliver batch after batch until a condition on the offset holds; returns the last offset, which is committed."""
    at = start

    def step() -> bool:
        nonlocal at
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        if end != at:
            replica.deliver(reader, at, end)
            at = end
        return bool(until(at))

    eventually(step, seconds=seconds)
    return at
