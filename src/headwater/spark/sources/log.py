"""What was read from the slot and is not yet delivered for good: the changes that ranges are cut from.

It lives in Spark's planner process. A range may be read again until Spark has committed it; then it is confirmed to the
server and forgotten.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from headwater.capture import Capture, CaptureSettings, emit_mark
from headwater.capture.statements import commit_locally, wal_position
from headwater.capture.tables import Name
from headwater.errors import SlotLost, SourceError
from headwater.model import Lineage, Lsn, Position
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.cut import Index
from headwater.postgres.replication.slot import find_slot, require_usable
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.sources.held import Held
from headwater.spark.sources.lanes import tables_in, without
from headwater.spark.sources.load import Load

# While a range that was logged is awaited: how often to look whether the stream is still alive.
_PATIENCE_SECONDS = 1.0
# As often as the server is told.
_RECORD_SECONDS = 1.0


class ChangeLog:
    """The undelivered changes of one slot, in order, from the last committed position on.

    Changes of tables that are being read as a whole are held back when the stream moves past them, until they are asked for.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        start: Position,
        load: Load | None = None,
        record: Callable[[Lsn], None] | None = None,
    ) -> None:
        """Begin to read at `start`, or where the slot is if that is later: what lies before that was delivered.

        Of the tables of a `load` begin at its position, which may be earlier. What is about to be confirmed to the server is
        told to `record` first.
        """
        self._committed = start
        start = start if load is None else min(start, load.position)
        self._settings = replace(settings, start=start.commit_lsn)
        confirmed, written = _confirmed(self._settings)
        if written is not None and start.commit_lsn > written:
            # Such a position would be confirmed to the server, which would then skip what it has yet to write.
            raise _beyond(start, written)
        self._floor = self._end = max(start, Position(confirmed, 0))
        self._parts: deque[Index] = deque()
        self._passed = Lsn(0)
        self._record, self._recorded, self._next_record = record, Lsn(0), 0.0
        self._done = Lsn(0)
        self._attempt: str | None = None
        self._held_tables: frozenset[Name] = frozenset()
        self._held: Held | None = None
        self._capture = Capture(self._settings)
        self._capture.start()
        if load is not None:
            try:
                self.hold(load)
                self._catch_up()
            except BaseException:
                self.close()
                raise

    @property
    def lineage(self) -> Lineage:
        return self._capture.lineage

    @property
    def floor(self) -> Position:
        """Everything before it has been delivered."""
        return self._floor

    @property
    def end(self) -> Position:
        """How far has been read."""
        return self._end

    @property
    def done(self) -> Lsn:
        """Whatever commits before it has been delivered, or was nothing of ours."""
        return self._done

    @property
    def held(self) -> Held:
        """The changes that were held back."""
        if self._held is None:
            raise SourceError("no table is being read, so nothing is held back; report it")
        return self._held

    def close(self) -> None:
        self.release()
        self._capture.stop()

    def hold(self, load: Load) -> None:
        """From now on, keep the changes of an attempt's tables when the stream moves past them."""
        if self._attempt != load.attempt:
            self.release()
            self._attempt, self._held = load.attempt, Held(self._settings.spill_directory)
        # Fewer than it began with, when some cannot be read.
        self._held_tables = frozenset(load.tables)

    def release(self) -> None:
        """Hold nothing back any more, and forget what was."""
        if self._held is not None:
            self._held.close()
        self._attempt, self._held, self._held_tables = None, None, frozenset()

    def report(self) -> None:
        """Tell the server now what is confirmed."""
        self._next_record = 0.0
        self._confirm(self._done)
        self._capture.report()

    def advance(self, committed: Position, needed: Position | None = None) -> None:
        """Everything before `committed` is delivered for good: forget it, and let the server forget what is not `needed`.

        What is held back is needed from an earlier position on.
        """
        if self._held is not None and committed > self._floor:
            self._hold_back(self._floor, committed)
        self._floor = max(self._floor, committed)
        while self._parts and self._parts[0].end <= self._floor:
            self._parts.popleft()
        if self._held is not None:
            if needed is not None:
                self._held.forget(needed)
                self._confirm(min(needed, self._floor).commit_lsn)
            return
        # With nothing left to deliver, what came without any change of ours, such as a heartbeat, is done with as well.
        done = self._floor.commit_lsn if self._parts else max(self._floor.commit_lsn, self._passed)
        self._confirm(done)

    def fill(self, start: Position, max_bytes: int, wait_seconds: float) -> None:
        """Take what has come, up to so many bytes behind `start`; wait a little for something, or for the rest of it."""
        deadline = time.monotonic() + wait_seconds
        held = self._bytes_after(start)
        while held < max_bytes:
            is_whole = held and self._parts[-1].batch.end is not None
            batch = self._capture.take(0 if is_whole else max(0, deadline - time.monotonic()))
            if batch is None:
                return
            held += self._append(batch)
            if not held:
                self.advance(self._floor)

    def fill_to(self, end: Position) -> None:
        """Take until everything before `end` has come; raises SlotLost if it never can."""
        if self._end >= end:
            return
        mark = self.mark()
        if end.commit_lsn > mark:
            raise _beyond(end, mark)
        while self._end < end and self._end.commit_lsn < mark:
            self._append_next()

    def mark(self) -> Lsn:
        """Write a mark: once the log has come to it, everything that committed before is in it."""
        return write_mark(self._settings.url)

    def fill_to_mark(self, mark: Lsn, max_bytes: int) -> None:
        """Take until the mark has come, or so much is held."""
        held = self._bytes_after(self._floor)
        while self._end.commit_lsn < mark and held < max_bytes:
            held += self._append_next()

    def bound(self, start: Position, max_bytes: int, max_rows: int | None, until: Lsn | None) -> Position:
        """The end of the next range, within the limits; `start` when there is nothing to deliver yet.

        It is the end of a transaction. Only one that exceeds the limits by itself is cut; of one that does not, but has not
        come as a whole, the rest is awaited.
        """
        size = rows = 0
        end = whole = start
        is_cut = self._bytes_after(start) >= max_bytes
        for part in self._parts:
            if part.end <= start:
                continue
            if until is not None and part.start.commit_lsn >= until:
                break
            batch = _after(part, start)
            if batch is None:
                continue
            if size and size + len(batch.data) > max_bytes:
                is_cut = True
                break
            if max_rows is not None and rows + batch.changes > max_rows:
                is_cut, end = True, Index.of(batch).bound_within(max_rows - rows) if rows < max_rows else end
                whole = end if _is_between(end) else whole
                break
            size, rows, end = size + len(batch.data), rows + batch.changes, part.end
            whole = end if _is_between(end) else whole
        return end if whole == start and is_cut else whole

    def between(self, start: Position, end: Position) -> list[Batch]:
        """The changes of a range, which has been read."""
        if end > self._end:
            raise SourceError(f"nothing is known of {end}: only what lies before {self._end} has been read")
        parts = (part.between(start, end) for part in self._parts if part.end > start and part.start < end)
        return [part for part in parts if part is not None]

    def _confirm(self, position: Lsn) -> None:
        """Let the server forget what lies before a position; at most once in a while, since it is written down first."""
        self._done = max(self._done, position)
        if self._record is not None and self._done > self._recorded:
            if time.monotonic() < self._next_record:
                return
            self._record(self._done)
            self._recorded, self._next_record = self._done, time.monotonic() + _RECORD_SECONDS
        self._capture.confirm(self._done)

    def _hold_back(self, start: Position, end: Position) -> None:
        for batch in self.between(start, min(end, self._end)):
            others = frozenset(oid for oid, names in tables_in(batch).items() if not names & self._held_tables)
            mine = without(batch, others)
            if mine is not None and mine.changes:
                self.held.add(mine)

    def _catch_up(self) -> None:
        """Read what was delivered before, and hold back what of it was not."""
        if self._floor >= self._committed:
            return
        mark = self.mark()
        if self._committed.commit_lsn > mark:
            raise _beyond(self._committed, mark)
        while self._end < self._committed and self._end.commit_lsn < mark:
            self._append_next()
            self.advance(min(self._end, self._committed))
        self.advance(self._committed)

    def _append_next(self) -> int:
        """Take in what comes next, if something comes soon, and return its size."""
        batch = self._capture.take(_PATIENCE_SECONDS)
        return 0 if batch is None else self._append(batch)

    def _append(self, batch: Batch) -> int:
        """Take a batch in, and return the size of what is new in it; what a reconnected stream repeats is there already."""
        index = Index.of(batch) if batch.changes else None
        if index is not None and index.start < self._end:
            fresh = index.between(self._end, index.end)
            index = None if fresh is None else Index.of(fresh)
        if index is not None:
            self._parts.append(index)
            self._end = index.end
        elif batch.end is not None:
            self._pass_over(batch.end)
        fresh = None if index is None else _after(index, index.start)
        return 0 if fresh is None else len(fresh.data)

    def _pass_over(self, end: Lsn) -> None:
        """Nothing is left to come before `end`, and nothing has come that was not there."""
        self._passed = max(self._passed, end)
        if Position(end, 0) <= self._end:
            return
        if self._parts and self._parts[-1].batch.end is None:
            # All of the transaction but its commit was there.
            self._parts[-1] = Index.of(replace(self._parts[-1].batch, end=end))
        self._end = Position(end, 0)

    def _bytes_after(self, start: Position) -> int:
        """How much is held behind a position; what holds no change counts for nothing, as in `bound`."""
        parts = (_after(part, start) for part in self._parts if part.end > start)
        return sum(len(part.data) for part in parts if part is not None)


def write_mark(url: str) -> Lsn:
    """Write a mark to the WAL, and return where it ends."""
    with translated(url), closing(connect_sync(url)) as connection:
        # A standby that the commits of others wait for must not hold up a reader.
        execute_sync(connection, commit_locally())
        return emit_mark(connection)


def _after(part: Index, start: Position) -> Batch | None:
    """What of a part lies behind a position: all of one with whole transactions that begins there or later."""
    is_all = part.start >= start and part.batch.end is not None
    return part.batch if is_all else part.between(start, part.end)


def _is_between(bound: Position) -> bool:
    """Whether the bound lies between two transactions."""
    return bound.ordinal == 0


def _beyond(wanted: Position, written: Lsn) -> SlotLost:
    return SlotLost(
        f"the checkpoint is at {wanted.commit_lsn}, and the server only at {written}: it is of another server, or of a "
        "later state of this one; name the right server, or a new checkpoint directory, and copy the tables anew"
    )


def _confirmed(settings: CaptureSettings) -> tuple[Lsn, Lsn | None]:
    """Where the slot is, and where the server's WAL ends; a standby does not tell."""
    with translated(settings.url), closing(connect_sync(settings.url)) as connection:
        slot = require_usable(find_slot(connection, settings.slot), settings.slot, connection.info.dbname)
        (written,) = fetch_sync(connection, wal_position())
    return slot.confirmed_flush_lsn or Lsn(0), written
