"""What comes next of an outbox: a part of its table or a range of its stream, and how it is split into lanes.

It lives in Spark's planner process, holds the slot, and writes down how far everything is delivered.
"""

from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from headwater import failpoints
from headwater.capture import CaptureSettings
from headwater.capture.emitted import EMITTED
from headwater.capture.slots import SourceSlot, ensure_slot, renew_slot
from headwater.capture.tables import SlotRecord, TableStore, prepare_tables
from headwater.errors import PositionError, SlotLost
from headwater.model import Lineage, Lsn, Position, Snapshot, SnapshotRead
from headwater.outbox.checkpoint import Checkpoint, CheckpointStore, prepare_outbox, take_checkpoint
from headwater.outbox.emit import PREFIX
from headwater.outbox.mapping import MappedTable, check_mapping
from headwater.outbox.mapping import Recovery as Promise
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.cut import joined
from headwater.postgres.replication.publication import Operation
from headwater.postgres.replication.slot import find_slot, require_usable
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.spark.frame import Frame, pack
from headwater.spark.rules import MIB
from headwater.spark.sources.content import Content, content_of
from headwater.spark.sources.lanes import (
    Laned,
    inserts_of,
    self_contained,
    split_by_column,
    tables_in,
    transactions_in,
    unseen,
)
from headwater.spark.sources.log import ChangeLog, write_mark
from headwater.spark.sources.outbox.delivery import Delivery
from headwater.spark.sources.outbox.messages import of_frame
from headwater.spark.sources.outbox.offset import OutboxOffset, Phase
from headwater.spark.sources.outbox.options import OutboxOptions
from headwater.spark.sources.outbox.recovery import Recovery
from headwater.spark.sources.outbox.saving import Saver

INSERTS: Final = frozenset({Operation.INSERT})

# Spark asks again at once when there was nothing; a pause in here saves it the asking, and is short enough for a stop.
_IDLE_SECONDS = 0.1
# Each piece costs a task some milliseconds to decode.
_PIECE_BYTES = 4 * MIB


@dataclass(frozen=True)
class StreamPartition(InputPartition):
    """The frames of one lane, packed."""

    lane: int
    frames: tuple[bytes, ...]


class Planner:
    """What one query knows in Spark's planner process: how far it is, and what comes next."""

    def __init__(self, options: OutboxOptions, start: OutboxOffset | None) -> None:
        self._options = options
        prepare_outbox(options.url)
        prepare_tables(options.state_url)
        self._table = _describe_table(options)
        self._tables = TableStore(options.state_url, options.pipeline)
        source = SourceSlot(options.url, options.slot, options.publication, (options.table,), INSERTS)
        is_ours = start is not None and start.slot == options.slot
        delivered = start.position.commit_lsn if start is not None and is_ours else None
        self._slot: SlotRecord = self._ensure_slot(source, delivered)
        self._lineage = self._read_lineage()
        epoch = options.epoch or take_checkpoint(options.url, options.pipeline, f"{self._table.schema}.{self._table.name}")
        self._store = CheckpointStore(options.url, options.pipeline, epoch)
        # Without a number of a run nobody else writes down what is delivered.
        self._delivery = None if options.epoch else Delivery(self._store, options.time_skew)
        self._recovery = Recovery(options, self._store, self._table)
        self._saver = Saver(self._store, options.checkpoint_interval)
        self._saved = self._store.find()
        # What ids of transactions are near to, for there are twice as many as the stream tells apart.
        self._near, _ = self._store.look_around()
        # The last range and what it holds: Spark asks for its end first, and then for it.
        self._cut: tuple[tuple[Position, SnapshotRead | None, Position], list[Batch]] | None = None
        self._log: ChangeLog | None = None
        self._mark: Lsn | None = None
        self._recorded: OutboxOffset | None = None

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        self._recovery.close()
        self._store.close()
        self._tables.close()

    def end_here(self) -> None:
        """Deliver what has committed by now, and nothing that comes later."""
        if self._options.columns.xid is not None:
            self._saver.take()
        self._mark = write_mark(self._options.url)

    def initial(self) -> OutboxOffset:
        """Where a query without a past of its own begins: by the checkpoint."""
        found = self._store.find()
        if found.generation != self._slot.generation:
            return self._offset(Phase.RECOVERING, self._since)
        if found.is_recovering:
            key = None if found.recovered_at is None else (found.recovered_at, found.recovered_id or "")
            return replace(self._offset(Phase.RECOVERING, self._since), key=key)
        confirmed = self._confirmed()
        return replace(self._offset(Phase.STREAMING, confirmed), read=self._read_until(found, confirmed))

    def next(self, committed: OutboxOffset) -> OutboxOffset | None:
        """The end of the next range, if there is anything to deliver or to log."""
        offset = self._rebased(committed)
        if self._delivery is not None and offset == committed and offset != self._recorded:
            self._delivery.record(offset)
            self._recorded = offset
        offset = replace(offset, lanes=self._options.lanes, keyed=self._options.keyed)
        return self._next_part(offset) if offset.is_recovering else self._next_range(offset)

    def partitions(self, start: OutboxOffset, end: OutboxOffset) -> list[InputPartition]:
        """What lies between two offsets; nothing, if it is delivered already, or was lost with its slot."""
        failpoints.hit("source.partitions")
        first = self._rebased(start)
        if first.generation != end.generation:
            return []
        if end.phase is not Phase.STREAMING:
            return self._parts(first, end)
        if first.is_recovering or first.position >= end.position or self._is_delivered(end):
            return []
        log = self._opened(first)
        log.fill_to(end.position)
        return self._lanes(log, self._changes(log, first, end.position), end)

    @property
    def _since(self) -> Position:
        return Position(self._slot.since or Lsn(0), 0)

    def _rebased(self, offset: OutboxOffset) -> OutboxOffset:
        """The offset, or, if it is of a slot that was lost or the checkpoint was reset, where to begin."""
        if offset.generation == self._slot.generation and self._is_valid(offset):
            return offset
        if offset.slot != self._options.slot and offset.system == self._lineage.system_identifier:
            raise PositionError(
                f"the checkpoint directory is of slot {offset.slot!r}, and this is slot {self._options.slot!r}; name "
                "another checkpoint directory, or remove this one"
            )
        return self.initial()

    def _is_valid(self, offset: OutboxOffset) -> bool:
        """Whether an offset of this slot is one that the checkpoint knows: somebody may have reset that meanwhile."""
        if offset.is_recovering and offset.key is None:
            return True
        if self._saved.phase != "streaming":
            # It moves on while the table is read.
            self._saved = self._store.find()
        is_known = self._saved.generation == self._slot.generation
        # Without a number of a run, it is written down here, and so later than Spark knows of it.
        return is_known and (offset.is_recovering or self._saved.phase == "streaming" or self._delivery is not None)

    def _ensure_slot(self, source: SourceSlot, delivered: Lsn | None) -> SlotRecord:
        try:
            return ensure_slot(source, self._tables, delivered)
        except SlotLost as exc:
            if self._options.epoch:
                # The run has to know of it first.
                raise
            return renew_slot(source, self._tables, str(exc))

    def _next_part(self, offset: OutboxOffset) -> OutboxOffset | None:
        checkpoint = self._recovery.begin(self._slot, self._lineage, None if self._mark else _IDLE_SECONDS)
        if checkpoint is None:
            return None
        self._saved = checkpoint
        cuts = self._recovery.cuts(checkpoint, offset.key)
        failpoints.hit("outbox.recovery_chunk")
        moved = offset.bare
        if cuts:
            cut = cuts[0]
            newest = None if self._options.columns.xid else _earlier(cut.at, checkpoint.saved_at)
            content = Content(cut.rows, None, {f"{self._table.schema}.{self._table.name}": cut.rows})
            moved = replace(moved, key=cut.key, content=content, newest_at=newest)
        if len(cuts) > 1:
            return moved
        read = self._read_until(checkpoint, self._since)
        return replace(moved, phase=Phase.RECOVERED, key=moved.key if cuts else None, read=read)

    def _parts(self, start: OutboxOffset, end: OutboxOffset) -> list[InputPartition]:
        if end.key is None or end.key == start.key:
            return []
        checkpoint = self._store.find()
        is_there = checkpoint.generation == end.generation and checkpoint.is_recovering
        if not is_there or (checkpoint.recovered_at, checkpoint.recovered_id) == end.key:
            # All sinks had it, and only Spark's own note of that is missing.
            return []
        return self._recovery.partitions(checkpoint, start.key, end.key, end.lanes)

    def _next_range(self, offset: OutboxOffset) -> OutboxOffset | None:
        log = self._opened(offset)
        log.advance(offset.position)
        if self._mark is None:
            log.fill(offset.position, self._options.max_bytes, _IDLE_SECONDS)
        else:
            log.fill_to_mark(self._mark, self._options.max_bytes)
        end = log.bound(log.floor, self._options.max_bytes, None, self._mark)
        if end > log.floor:
            return self._moved(offset, end, log)
        if self._options.columns.xid is not None:
            self._saver.look(offset.generation, offset.position.commit_lsn, log.done, self._lineage.timeline_of)
        if self._mark is not None:
            # The query ends here, and its planner at once with it.
            log.report()
        return None

    def _moved(self, offset: OutboxOffset, end: Position, log: ChangeLog) -> OutboxOffset:
        """The offset at the end of a range of the stream."""
        if self._options.columns.xid is not None:
            self._saver.look(offset.generation, offset.position.commit_lsn, log.done, self._lineage.timeline_of)
        batches = self._changes(log, offset, end)
        read = offset.read if offset.read is not None and offset.read.until > end.commit_lsn else None
        moved = replace(
            offset.bare,
            phase=Phase.STREAMING,
            key=None,
            position=end,
            timeline=_timeline(log.lineage, end),
            read=read,
            content=content_of(batches),
        )
        if self._options.columns.xid is not None:
            return replace(moved, xids=self._xids(batches, end))
        return replace(moved, newest_at=self._newest(batches))

    def _changes(self, log: ChangeLog, start: OutboxOffset, end: Position) -> list[Batch]:
        """The inserts of a range, without those that were read from the table."""
        wanted = (start.position, start.read, end)
        if self._cut is not None and self._cut[0] == wanted:
            return self._cut[1]
        kept = []
        for batch in log.between(start.position, end):
            found = inserts_of(batch, (self._table.schema, self._table.name))
            if found is not None and start.read is not None:
                found = unseen(found, frozenset(tables_in(found)), start.read)
            if found is not None and found.changes:
                kept.append(found)
        self._cut = (wanted, kept)
        return kept

    def _xids(self, batches: list[Batch], end: Position) -> tuple[int, ...]:
        """The transactions that are delivered as a whole once the range is."""
        found = [pair for batch in batches for pair in transactions_in(batch)]
        xids = sorted({self._near.widen(xid) for lsn, xid in found if end.ordinal == 0 or lsn < end.commit_lsn})
        if xids:
            self._near = Snapshot(xids[-1], xids[-1], frozenset())
        return tuple(xids)

    def _newest(self, batches: list[Batch]) -> datetime | None:
        """When the newest message of a range was written, by the clock that wrote it, but not after its commit."""
        if self._options.columns.created_at is None or not batches:
            return None
        frames = (Frame(0, None, self_contained(batch), (), self._lineage) for batch in batches)
        times: list[datetime] = [pc.max(of_frame(one, self._options.columns)["created_at"]).as_py() for one in frames]
        committed_at = content_of(batches).committed_at
        # A clock that is ahead must not make others' messages look delivered.
        return max(times) if committed_at is None else min(max(times), committed_at)

    def _lanes(self, log: ChangeLog, batches: list[Batch], end: OutboxOffset) -> list[InputPartition]:
        lanes: dict[int, list[bytes]] = {}
        pieces = list(joined(batches, _PIECE_BYTES))
        key = self._options.columns.key
        if end.keyed and key is not None:
            split = split_by_column(pieces, end.lanes, key)
        else:
            split = (Laned(0, None, batch) for batch in pieces)
        for laned in split:
            frame = Frame(laned.lane, laned.key_lane, self_contained(laned.batch), (), log.lineage)
            lanes.setdefault(laned.lane, []).append(pack(frame))
        return [StreamPartition(lane, tuple(frames)) for lane, frames in sorted(lanes.items())]

    def _is_delivered(self, end: OutboxOffset) -> bool:
        """Whether all sinks had a range, and only Spark's own note of that is missing."""
        if not end.xids or end.position.ordinal:
            return False
        known = self._store.find().snapshot
        snapshot = None if known is None else Snapshot.parse(known)
        delivered = frozenset(self._store.delivered())
        return all(xid in delivered or (snapshot is not None and snapshot.sees(xid)) for xid in end.xids)

    def _opened(self, offset: OutboxOffset) -> ChangeLog:
        if self._log is None:
            if offset.timeline != _timeline(self._lineage, offset.position):
                raise SlotLost(
                    f"the checkpoint is at {offset.position.commit_lsn} on timeline {offset.timeline}, which is not part of "
                    f"this server's history (timeline {self._lineage.timeline}): a standby that lagged when it was promoted"
                )
            self._log = ChangeLog(self._capture_settings(), offset.position, None, self._record)
        return self._log

    def _record(self, confirmed: Lsn) -> None:
        self._tables.save_confirmed(self._slot.generation, confirmed)

    def _read_until(self, checkpoint: Checkpoint, position: Position) -> SnapshotRead | None:
        """What of the stream the table's reading has covered, if any of that may come behind a position."""
        known, until = checkpoint.recovery_snapshot, checkpoint.recovery_lsn
        if known is None or until is None or until <= position.commit_lsn:
            return None
        if self._options.columns.xid is None or checkpoint.recovers_all:
            # Rows that do not tell their transaction may come twice rather than not at all.
            return None
        return SnapshotRead(Snapshot.parse(known), until)

    def _offset(self, phase: Phase, position: Position) -> OutboxOffset:
        options = self._options
        return OutboxOffset(
            self._lineage.system_identifier,
            options.slot,
            self._slot.generation,
            _timeline(self._lineage, position),
            options.lanes,
            options.keyed,
            position,
            phase,
        )

    def _confirmed(self) -> Position:
        options = self._options
        with translated(options.url), closing(connect_sync(options.url)) as connection:
            slot = require_usable(find_slot(connection, options.slot), options.slot, connection.info.dbname)
        return Position(slot.confirmed_flush_lsn or Lsn(0), 0)

    def _read_lineage(self) -> Lineage:
        with ReplicationConnection(self._options.url) as replication:
            return replication.lineage(self._options.slot)

    def _capture_settings(self) -> CaptureSettings:
        options = self._options
        return CaptureSettings(
            url=options.url,
            slot=options.slot,
            publications=(options.publication,),
            streaming=not options.emitted,
            emitted=PREFIX if options.emitted else None,
            batch_bytes=min(_PIECE_BYTES, options.max_bytes),
            buffer_bytes=options.max_bytes,
            confirm_idle=False,
            status_interval=options.status_interval,
        )


def _describe_table(options: OutboxOptions) -> MappedTable:
    if options.emitted:
        names = EMITTED.schema, EMITTED.name
        return MappedTable(EMITTED.oid, *names, options.columns, "text", "text", Promise.NONE, has_index=False)
    with translated(options.url), closing(connect_sync(options.url)) as connection:
        return check_mapping(connection, options.table, options.columns)


def _earlier(at: str, than: datetime) -> datetime:
    """The earlier of a time as PostgreSQL writes it, which need not be one of this calendar, and another."""
    try:
        return min(datetime.fromisoformat(at), than)
    except ValueError:
        return than


def _timeline(lineage: Lineage, position: Position) -> int:
    """The timeline that wrote what lies before a position."""
    return lineage.timeline_of(Lsn(max(0, position.commit_lsn - 1)))
