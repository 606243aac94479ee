"""Streams of changes to test with: messages as a server sends them, and a reader of the source driven without Spark."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadLimit

from headwater.model import UNCHANGED, Change, Lsn, Position
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import to_json
from headwater.spark.frame import Frame, unpack
from headwater.spark.sources.changes import ChangesDataSource, ChangesReader, LanePartition
from headwater.spark.sources.log import ChangeLog
from tests.support.capture import pgoutput_writer as write
from tests.support.capture.recordings import TYPES
from tests.support.waiting import eventually

INT, TEXT = 23, 25
# By oid: a plain key, a key of two columns, the whole row as identity, and none at all.
TABLES = {
    16401: ("orders", [("id", INT, -1, True), ("v", TEXT, -1, False)], "d"),
    16402: ("lines", [("v", TEXT, -1, False), ("a", INT, -1, True), ("b", TEXT, -1, True)], "d"),
    16403: ("whole", [("id", INT, -1, True), ("v", TEXT, -1, True)], "f"),
    16404: ("events", [("v", TEXT, -1, False)], "n"),
}
_VALUES = {INT: st.integers(0, 9).map(str), TEXT: st.sampled_from(["", "a", 'b"', "ü", "long " * 9])}
# So few that rows are changed again and again.
_FEW = {INT: st.sampled_from(["0", "1"]), TEXT: st.sampled_from(["", "a"])}


def relation(oid: int) -> bytes:
    name, columns, identity = TABLES[oid]
    return write.relation(oid, name, columns, identity)


@st.composite
def _changes(draw: st.DrawFn, oid: int, *, barriers: bool, few_keys: bool) -> bytes:
    _, columns, identity = TABLES[oid]
    keys = _FEW if few_keys else _VALUES
    new = [draw(keys[type_] if key and identity != "f" else st.none() | _VALUES[type_]) for _, type_, _, key in columns]
    old = [draw(keys[type_]) if key else None for _, type_, _, key in columns]
    kinds = ["insert"] if identity == "n" else ["insert", "update", "delete"]
    if barriers:
        kinds += ["truncate"] if identity == "n" else ["truncate", "move"]
    old_kind = "O" if identity == "f" else "K"
    match draw(st.sampled_from(kinds)):
        case "insert":
            return write.insert(oid, new)
        case "update" if identity != "f":
            kept = [key or draw(st.booleans()) for *_, key in columns]
            return write.update(oid, [value if is_kept else UNCHANGED for value, is_kept in zip(new, kept, strict=True)])
        case "update" | "move":
            return write.update(oid, new, old, old_kind)
        case "delete":
            return write.delete(oid, old, old_kind)
        case _:
            return write.truncate(*draw(st.lists(st.sampled_from(sorted(TABLES)), min_size=1, max_size=3, unique=True)))


@st.composite
def streams(draw: st.DrawFn, *, barriers: bool = True, few_keys: bool = False) -> list[bytes]:
    """The messages of a few transactions, some sent while in progress, some that end where the next one's commit begins."""
    messages: list[bytes] = []
    described: set[int] = set()
    lsn = 1000
    for xid in range(1, draw(st.integers(2, 6))):
        lsn += draw(st.sampled_from([0, 7]))
        changes: list[tuple[int, bytes]] = []
        for _ in range(draw(st.integers(0, 6))):
            oid = draw(st.sampled_from(sorted(TABLES)))
            changes.append((oid, draw(_changes(oid, barriers=barriers, few_keys=few_keys))))
        end = lsn + 10
        if draw(st.booleans()) and changes:
            bodies = [*map(relation, sorted(TABLES)), *(change for _, change in changes)]
            blocks = [bodies, []] if draw(st.booleans()) else [bodies]
            for number, block in enumerate(blocks):
                messages += [write.stream_start(xid, first=not number), *(write.streamed(each, xid) for each in block)]
                messages.append(write.stream_stop())
            messages.append(write.stream_commit(xid, lsn, end, lsn * 1000))
        else:
            messages.append(write.begin(lsn, lsn * 1000, xid))
            for oid, change in changes:
                # A truncate may name any table.
                missing = set(TABLES) - described if change[:1] == b"T" else {oid} - described
                again = {oid} if draw(st.integers(0, 9)) == 0 else set()
                messages += [relation(each) for each in sorted(missing | again)]
                described |= missing
                messages.append(change)
            if draw(st.integers(0, 4)) == 0:
                messages.append(write.message(lsn, "app", b"in it"))
            messages.append(write.commit(lsn, end, lsn * 1000))
        if draw(st.integers(0, 4)) == 0:
            messages.append(write.message(end, "app", b"outside", transactional=False))
        lsn = end
    return messages


def changes_of(batches: Iterable[Batch]) -> list[Change]:
    """The row changes, with values as JSON fragments, which compare."""
    decoded = (each for batch in batches for each in decode_rows(batch, TYPES, to_json))
    return [change for change in decoded if isinstance(change, Change)]


@dataclass(frozen=True)
class Range:
    """A range as Spark would log it, and what its partitions hold: packed frames by lane."""

    start: dict[str, Any]
    end: dict[str, Any]
    partitions: Sequence[LanePartition]

    def lanes(self) -> dict[int, list[dict[str, Any]]]:
        """The changes of each lane, in order."""
        return {
            partition.lane: [_plain(change) for frame in partition.frames for change in changes_of_frame(frame)]
            for partition in self.partitions
        }

    def changes(self) -> list[dict[str, Any]]:
        """The changes of all lanes by their positions."""
        return sorted((change for lane in self.lanes().values() for change in lane), key=lambda change: change["position"])


def frame_in(packed: bytes) -> Frame:
    """A frame of changes, where no piece of a table is."""
    frame = unpack(packed)
    assert isinstance(frame, Frame)
    return frame


def changes_of_frame(packed: bytes) -> Iterator[Change]:
    frame = frame_in(packed)
    return (each for each in decode_rows(frame.batch, frame.types, to_json) if isinstance(each, Change))


def _plain(change: Change) -> dict[str, Any]:
    """A change as values that JSON keeps."""
    return {
        "position": [int(change.position.commit_lsn), change.position.ordinal],
        "xid": change.xid,
        "op": str(change.op),
        "table": change.table,
        "key": change.key,
        "before": _sent(change.before),
        "after": _sent(change.after),
        "unchanged": list(change.unchanged),
    }


def _sent(row: Any) -> dict[str, Any] | None:
    return None if row is None else {name: value for name, value in row.items() if value is not UNCHANGED}


def new_reader(**options: object) -> ChangesReader:
    """A reader as Spark's planner makes it; options as in a `readStream`."""
    source = ChangesDataSource({name: str(value) for name, value in options.items()})
    return source.streamReader(source.schema())


@contextmanager
def reading(**options: object) -> Iterator[ChangesReader]:
    reader = new_reader(**options)
    try:
        yield reader
    finally:
        reader.stop()


def next_range(reader: ChangesReader, start: dict[str, Any], limit: ReadLimit | None = None) -> Range:
    """The next range, as soon as there is one, planned as Spark does; `start` counts as committed."""

    def found() -> dict[str, Any] | None:
        end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
        return None if end == start else end

    end = eventually(found, seconds=60)
    assert end is not None
    return planned(reader, start, end)


def planned(reader: ChangesReader, start: dict[str, Any], end: dict[str, Any]) -> Range:
    """A range of changes alone, as the reader plans it."""
    return Range(start, end, cast("list[LanePartition]", reader.partitions(start, end)))


def log_of(reader: ChangesReader) -> ChangeLog:
    """What a reader follows that has begun."""
    assert reader._log is not None
    return reader._log


def ranges(reader: ChangesReader, changes: int, start: dict[str, Any] | None = None) -> Iterator[Range]:
    """Ranges until they hold so many changes."""
    at, found = start or reader.initialOffset(), 0
    while found < changes:
        each = next_range(reader, at)
        yield each
        at, found = each.end, found + sum(sum(partition.changes) for partition in each.partitions)
    assert found == changes, f"{found} changes came, and {changes} were made"


def digest(reader: ChangesReader, found: Range) -> dict[str, tuple[int, str]]:
    """How many rows each lane gives to Spark, and a hash over them in their order."""
    digests = {}
    for partition in found.partitions:
        rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
        digests[str(partition.lane)] = (len(rows), sha256(repr(rows).encode()).hexdigest())
    return digests


def replay(
    options: dict[str, object], logged: list[tuple[dict[str, Any], dict[str, Any]]], every: int
) -> list[dict[str, tuple[int, str]]]:
    """Plan and read ranges as they were logged, with a new reader for each so many; on one core, in a process of its own."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    digests = []
    for first in range(0, len(logged), every):
        with reading(**options) as reader:
            for start, end in logged[first : first + every]:
                digests.append(digest(reader, planned(reader, start, end)))
    return digests


def position(offset: dict[str, Any]) -> Position:
    return Position(Lsn.parse(offset["lsn"]), offset["ordinal"])
