"""Reading an outbox's table after its slot was lost, or for the first time: up to a snapshot, in parts, resumed at a key.

The slot is there before the snapshot is taken, and older transactions have ended: what the snapshot does not see comes
through the slot. Nothing is held open while the table is read.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from threading import Event

from pyspark.sql.datasource import InputPartition

from headwater.capture.snapshot import Stopped, open_snapshot
from headwater.capture.tables import SlotRecord
from headwater.errors import ConnectionLost, SourceError
from headwater.model import Lineage, Snapshot, SnapshotRead
from headwater.outbox.checkpoint import Checkpoint, CheckpointStore
from headwater.outbox.mapping import MappedTable
from headwater.outbox.recovery import Cut, Gap, Key, is_foreign, list_cuts, read_part
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.stream import SESSION
from headwater.postgres.statements import fetch_sync
from headwater.spark.sources.outbox.options import OutboxOptions

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TablePartition(InputPartition):
    """One lane of one part of the table."""

    lane: int
    query: str
    payload_type: str


class Recovery:
    """The reading of one table for one slot; it lives in Spark's planner process."""

    def __init__(self, options: OutboxOptions, store: CheckpointStore, table: MappedTable) -> None:
        self._options, self._store, self._table = options, store, table
        self._stopping = Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fence")
        self._opening: Future[tuple[SnapshotRead, bool]] | None = None
        self._gap: Gap | None = None
        self._cuts: Sequence[Cut] | None = None

    def close(self) -> None:
        self._stopping.set()
        self._pool.shutdown()

    def begin(self, slot: SlotRecord, lineage: Lineage, seconds: float | None) -> Checkpoint | None:
        """The checkpoint, once it says up to where the table is to be read; None if that takes longer.

        Older transactions have to end first, of whoever they are.
        """
        found = self._store.find()
        if found.generation == slot.generation:
            return found
        if self._table.columns.created_at is None and found.phase != "new":
            raise self._lost(slot.slot)
        keeps = found.phase != "new" and found.holds_for(lineage)
        if self._opening is None:
            self._opening = self._pool.submit(self._open, looks=not keeps and self._table.columns.xid is not None)
        try:
            read, is_all = self._opening.result(seconds)
        except TimeoutError:
            return None
        except BaseException:
            self._opening = None
            raise
        self._opening = None
        self._tell(found, keeps=keeps, is_all=is_all)
        self._store.begin_recovery(slot.generation, lineage, read.snapshot, read.until, keeps=keeps, recovers_all=is_all)
        return self._store.find()

    def cuts(self, checkpoint: Checkpoint, after: Key | None) -> Sequence[Cut]:
        """The parts that are left after a key; none of a table whose rows have no order."""
        if self._table.columns.created_at is None:
            return ()
        if self._cuts is None:
            query = list_cuts(self._table, self.gap(checkpoint), after, self._options.recovery_rows)
            with translated(self._options.url), closing(connect_sync(self._options.url)) as connection:
                for statement in SESSION:
                    connection.execute(statement.encode())
                self._cuts = fetch_sync(connection, query)
            rows = sum(cut.rows for cut in self._cuts)
            if rows:
                facts = {"slot": self._options.slot}
                _log.info("outbox %s: %d messages to be read from the table", self._options.table, rows, extra=facts)
        keys = [cut.key for cut in self._cuts]
        return self._cuts[keys.index(after) + 1 :] if after in keys else self._cuts

    def partitions(self, checkpoint: Checkpoint, after: Key | None, last: Key, lanes: int) -> list[InputPartition]:
        """The rows between two keys, a partition for each lane."""
        gap = self.gap(checkpoint)
        parts = [(lane, lanes) if lanes > 1 else None for lane in range(lanes)]
        queries = [read_part(self._table, gap, after, last, part) for part in parts]
        return [TablePartition(lane, query, self._table.payload_type) for lane, query in enumerate(queries)]

    def gap(self, checkpoint: Checkpoint) -> Gap:
        """What is missing; it stays the same while it is read."""
        if self._gap is None:
            known, at = checkpoint.snapshot, checkpoint.newest_at
            self._gap = Gap(
                None if checkpoint.recovers_all else Snapshot.parse(checkpoint.recovery_snapshot or ""),
                None if known is None else Snapshot.parse(known),
                self._store.delivered(),
                None if at is None else at.isoformat(),
                tuple((Snapshot.parse(one["snapshot"]), (one["at"], one["id"])) for one in checkpoint.recovered_before),
            )
        return self._gap

    def _lost(self, slot: str) -> SourceError:
        reset = f"`headwater outbox checkpoint reset {self._options.pipeline}`"
        if self._options.emitted:
            return SourceError(
                f"slot {slot!r} was lost, and with it the messages that it held, which were in the WAL alone; find out what "
                f"is missing, and begin anew from now on with {reset}"
            )
        return SourceError(
            f"slot {slot!r} was lost, and table {self._options.table} has no column that says when a row was written, so "
            f"what is missing cannot be found; add one, or begin anew from now on with {reset}"
        )

    def _open(self, *, looks: bool) -> tuple[SnapshotRead, bool]:
        """A snapshot, and, where one `looks`, whether rows are of another server."""
        try:
            with closing(open_snapshot(self._options.url, (), self._stopping, self._wait)) as opened:
                return opened.read, looks and fetch_sync(opened.connection, is_foreign(self._table))[0]
        except Stopped as exc:
            raise ConnectionLost("the recovery was ended before it began") from exc

    def _wait(self, why: str) -> None:
        _log.warning("outbox %s: %s", self._options.table, why, extra={"slot": self._options.slot})

    def _tell(self, found: Checkpoint, *, keeps: bool, is_all: bool) -> None:
        facts = {"slot": self._options.slot}
        if is_all:
            said = "outbox %s: has rows with transactions of another server; what is written while it is read may come twice"
            _log.warning(said, self._options.table, extra=facts)
        if self._table.columns.created_at is None:
            _log.info("outbox %s: delivered from now on", self._options.table, extra=facts)
        elif found.phase == "new":
            _log.info("outbox %s: has no checkpoint, so all of it is delivered", self._options.table, extra=facts)
        elif keeps:
            _log.warning("outbox %s: slot was lost; what it held is read from the table", self._options.table, extra=facts)
        else:
            said = "outbox %s: the checkpoint is of another server or history, so everything is delivered again"
            _log.warning(said, self._options.table, extra=facts)
