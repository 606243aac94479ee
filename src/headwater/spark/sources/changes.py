"""The source `headwater.changes`: a logical replication slot as a stream of Spark's.

Spark keeps one planner process per query; the slot is read there, by a capture thread, and ranges of what was read are cut
there into partitions. Tasks get the server's bytes and decode them into Arrow. The names of the methods are Spark's.

What a query has committed is confirmed to the server, so it must commit after it has delivered. The option
`asyncProgressTrackingEnabled` of a `writeStream` breaks that, and a source cannot see it. Spark refuses it for
`foreachBatch`, which pipelines use; whoever writes a query of their own must leave it out.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater import failpoints
from headwater.capture import CaptureSettings, CatalogTypes
from headwater.capture.provision import provision
from headwater.capture.tables import Name, PipelineTable, TableStore, prepare_tables
from headwater.errors import PositionError, SettingsError, SlotLost
from headwater.model import Lineage, Lsn, Position, Snapshot, SnapshotRead
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.cut import joined
from headwater.postgres.replication.messages import Relation
from headwater.postgres.replication.slot import find_slot, require_usable
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.postgres.types import PgType, Types
from headwater.spark.frame import Frame, Layout, pack, unpack
from headwater.spark.rules import MIB, SnapshotRule
from headwater.spark.shape import ENVELOPE, WIRE, Shape
from headwater.spark.sources.adbc import close_kept
from headwater.spark.sources.content import content_of
from headwater.spark.sources.envelope import to_envelopes
from headwater.spark.sources.guard import Guard
from headwater.spark.sources.lanes import self_contained, split, tables_in, unseen, without
from headwater.spark.sources.layouts import Layouts
from headwater.spark.sources.load import Join, Load
from headwater.spark.sources.loader import Loader, PiecePartition
from headwater.spark.sources.log import ChangeLog, write_mark
from headwater.spark.sources.offset import Offset
from headwater.spark.sources.options import Options, parse_options
from headwater.spark.sources.protect import Protection
from headwater.spark.sources.reading import read_piece
from headwater.spark.sources.step import Step, step_between
from headwater.spark.sources.table import table_schema, to_table
from headwater.spark.sources.wanted import Wanted

NAME: Final = "headwater.changes"

# Spark asks again at once when there was nothing; a pause in here saves it the asking, and is short enough for a stop.
_IDLE_SECONDS = 0.1
# Larger pieces than capture's own default: each costs a task some milliseconds to decode.
_PIECE_BYTES = 4 * MIB

_WIRE_SCHEMA: Final = pa.schema([("lane", pa.int32()), ("changes", pa.int64()), ("frame", pa.binary())])


@dataclass(frozen=True)
class LanePartition(InputPartition):
    """The frames of one lane, packed."""

    lane: int
    changes: tuple[int, ...]
    frames: tuple[bytes, ...]


class ChangesDataSource(DataSource):
    """Registers with a session as `headwater.changes`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = parse_options(self.options)
        if options.shape is Shape.TABLE and options.table is not None:
            return table_schema(options.url, options.table)
        return ENVELOPE if options.shape is Shape.ENVELOPE else WIRE

    def reader(self, schema: StructType) -> Any:
        raise SettingsError(
            "`headwater.changes` is a stream: use `readStream`, with `trigger(availableNow=True)` to end where it is now"
        )

    def streamReader(self, schema: StructType) -> "ChangesReader":  # noqa: N802 - Spark's name
        return ChangesReader(parse_options(self.options), schema)


class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader. It is also pickled to tasks, where only `read` is called, so it opens nothing before it must."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._log: ChangeLog | None = None
        self._loader: Loader | None = None
        self._types: CatalogTypes | None = None
        self._layouts: Layouts | None = None
        self._wanted: Wanted | None = None
        self._guard: Guard | None = None
        self._initial: Offset | None = None
        self._mark: Lsn | None = None
        self._is_new = False
        self._generation: str | None = None
        self._since = Lsn(0)
        self._held_had_its_turn = False

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options, "_schema": self._schema}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        options = self._options
        if self._initial is None and self._loads is not None:
            # Before the slot: whoever finds it knows which tables have yet to be read.
            tables = self._loads.enlist()
            initial = self._slot_offset(tables, self._loads.ensure_slot(Lsn(0)).generation)
            # There is nothing before it that a table's snapshot would have to wait for.
            self._initial = self._loads.plan(initial)
        elif self._initial is None:
            # Only here: with a checkpoint a missing slot is a loss, and must not be made anew in silence.
            if options.tables:
                self._is_new = provision(options.url, options.slot, options.publication, options.tables)
            self._initial = self._slot_offset([], "")
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        return ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` is the end of the last one that Spark has committed, so it is confirmed."""
        offset = self._rebased(Offset.from_json(start))
        log = self._opened(offset, offset)
        if offset.load is None:
            log.release()
        else:
            log.hold(offset.load)
        log.advance(offset.position, offset.needed)
        while True:
            following = self._next(offset, log, limit)
            if following is not None:
                return following.to_json()
            if self._mark is None or self._loads is None or not self._loads.wait(offset, _IDLE_SECONDS):
                break
        if self._mark is not None:
            # The query ends here, and its planner at once with it.
            log.report()
        return start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        if self._log is None or self._initial is None:
            return None
        return replace(self._initial, position=self._log.end).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Everything that has committed by now is to be delivered, and then the query ends."""
        self._mark = write_mark(self._options.url)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The lanes of a range, and pieces of tables; after a restart this is called before anything else."""
        failpoints.hit("source.partitions")
        first, last = self._rebased(Offset.from_json(start)), Offset.from_json(end)
        if first.generation != last.generation:
            # It was logged before the slot was lost: what it held is gone, and its tables are read as a whole instead.
            return []
        if first.position > last.position:
            if self._is_new:
                # The first batch was logged and never committed, so Spark has asked for the initial offset again.
                raise PositionError(
                    f"slot {self._options.slot!r} was missing and is made anew, and the checkpoint directory has a batch "
                    "that was not delivered: it is lost, and what came after it; copy the tables anew, and remove the "
                    "directory"
                )
            return []
        step = step_between(first, last)
        found: list[InputPartition] = []
        if step.start < step.end:
            log = self._opened(first, last)
            if not step.only:
                log.fill_to(step.end)
            found += self._lanes(log, self._changes(log, step, last), last)
        if step.load is not None and self._loads is not None:
            lineage = self._opened(first, last).lineage
            found += self._loads.partitions(step.load, step.first, step.last, lineage)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self._options
        if isinstance(partition, PiecePartition):
            yield from read_piece(partition, options, self._schema)
            return
        lane = cast("LanePartition", partition)
        for changes, packed in zip(lane.changes, lane.frames, strict=True):
            if options.shape is Shape.WIRE:
                yield pa.RecordBatch.from_arrays(
                    [pa.array([lane.lane], pa.int32()), pa.array([changes]), pa.array([packed], pa.binary())],
                    schema=_WIRE_SCHEMA,
                )
                continue
            frame = cast("Frame", unpack(packed))
            if options.shape is Shape.ENVELOPE:
                yield to_envelopes(frame.batch, frame.types, options.protection)
            else:
                yield to_table(frame.batch, frame.types, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Comes a batch late, and never when nothing follows; `latestOffset` confirms instead."""

    def stop(self) -> None:
        """Hang up. Nothing is confirmed here: this also runs when Spark has died in the middle of a batch."""
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._loader is not None:
            self._loader.close()
            self._loader = None
        close_kept()

    def _next(self, offset: Offset, log: ChangeLog, limit: ReadLimit) -> Offset | None:
        """The end of the next batch, if there is anything to deliver or to log."""
        if offset.load is not None and offset.load.is_complete:
            ahead = self._fill(offset, log, limit)
            if self._loads is not None:
                self._loads.plan(offset)
            # Turn and turn about, so that neither the stream nor the tables that were read wait for long.
            self._held_had_its_turn = not self._held_had_its_turn
            is_even = offset.load.position == offset.position
            if self._held_had_its_turn or ahead == log.floor or is_even:
                return self._next_held(offset, offset.load, log)
            return self._moved(offset, offset, ahead, log)
        planned = offset if self._loads is None else self._loads.plan(offset)
        end = self._fill(offset, log, limit)
        if planned.load is not None and (offset.load is None or offset.load.attempt != planned.load.attempt):
            planned = replace(planned, load=replace(planned.load, position=max(end, offset.position)))
        if end <= log.floor:
            return None if planned == offset else replace(planned, content=content_of([]))
        return self._moved(offset, planned, end, log)

    def _fill(self, offset: Offset, log: ChangeLog, limit: ReadLimit) -> Position:
        """Take in what has come, and return where the next range of the stream ends."""
        if self._mark is None:
            log.fill(offset.position, self._options.max_bytes, _IDLE_SECONDS)
        else:
            log.fill_to_mark(self._mark, self._options.max_bytes)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        return log.bound(log.floor, max_bytes, max_rows, self._mark)

    def _moved(self, offset: Offset, planned: Offset, end: Position, log: ChangeLog) -> Offset:
        """The offset at the end of a range of the stream."""
        joins = tuple(join for join in offset.joins if join.read.until > end.commit_lsn)
        moved = replace(planned, position=end, timeline=_timeline(log.lineage, end), joins=joins)
        batches = self._changes(log, step_between(offset, moved), moved)
        return replace(moved, content=content_of(batches))

    def _next_held(self, offset: Offset, load: Load, log: ChangeLog) -> Offset:
        """The offset at the end of a range of changes that were held back; with the last of them, their wait is over."""
        end = log.held.bound(load.position, offset.position, self._options.max_bytes)
        if end < offset.position:
            moved = replace(offset, load=replace(load, position=end))
        else:
            joins = (*offset.joins, load.join) if load.join.read.until > offset.position.commit_lsn else offset.joins
            moved = replace(offset, load=None, joins=joins)
        return replace(moved, content=content_of(self._changes(log, step_between(offset, moved), moved)))

    def _changes(self, log: ChangeLog, step: Step, end: Offset) -> list[Batch]:
        """The changes of a step, without those that nobody asked for, that wait, or that a snapshot holds already."""
        batches = log.held.between(step.start, step.end) if step.only else log.between(step.start, step.end)
        unwanted = self._unwanted(batches, end.added)
        kept = []
        for batch in batches:
            names = tables_in(batch)
            left_out = frozenset(
                oid for oid, called in names.items() if called & step.without or (step.only and not called & step.only)
            )
            found = without(batch, left_out | unwanted)
            for join in step.joins:
                found = None if found is None else unseen(found, _oids(names, join), join.read)
            if found is not None and found.changes:
                kept.append(found)
        return kept

    def _lanes(self, log: ChangeLog, batches: list[Batch], end: Offset) -> list[InputPartition]:
        lanes: dict[int, list[tuple[int, bytes]]] = {}
        if self._options.protection != Protection():
            self._guard = self._guard or Guard(self._options.url, self._options.protection)
            for batch in batches:
                self._guard.check(batch)
        layouts = self._layouts_of(batches)
        for laned in split(list(joined(batches, _PIECE_BYTES)), end.lanes, end.rule):
            own, batch = self._own_types(laned.batch), self_contained(laned.batch)
            oids = tables_in(batch).keys() if layouts else ()
            known = tuple((relation, layout) for relation, layout in layouts if layout.oid in oids)
            frame = Frame(laned.lane, laned.key_lane, batch, own, log.lineage, known)
            lanes.setdefault(laned.lane, []).append((laned.batch.changes, pack(frame)))
        return [LanePartition(lane, *zip(*frames, strict=True)) for lane, frames in sorted(lanes.items())]

    def _own_types(self, batch: Batch) -> tuple[PgType, ...]:
        if self._types is None:
            self._types = CatalogTypes(self._options.url)
        types, builtin = self._types.of(batch), Types.builtin()
        return () if types is builtin else tuple(type_ for oid, type_ in types.items() if builtin.get(oid) != type_)

    def _layouts_of(self, batches: list[Batch]) -> list[tuple[Relation, Layout]]:
        """How columns are numbered: only who takes the server's own messages has a use for it."""
        if self._options.shape is not Shape.WIRE:
            return []
        self._layouts = self._layouts or Layouts(self._options.url)
        return self._layouts.of(batches)

    def _unwanted(self, batches: list[Batch], added: tuple[Name, ...]) -> frozenset[int]:
        """The tables that the publication has and nobody asked for."""
        options = self._options
        # One table's columns have room for no other's rows.
        names = options.tables if options.table is None else (options.table,)
        if not names:
            return frozenset()
        names += tuple(_quoted(name) for name in added if options.table is None)
        if self._wanted is None or self._wanted.patterns != names:
            self._wanted = Wanted(options.url, options.publication, names, is_whole=self._takes_all_named)
        return frozenset().union(*map(self._wanted.dropped, batches))

    @property
    def _takes_all_named(self) -> bool:
        """Whether each table that the publication names is wanted. Where tables are read first, those wait for that."""
        options = self._options
        return options.whole_publication and options.snapshot is SnapshotRule.NEVER

    @property
    def _loads(self) -> Loader | None:
        """What reads tables as a whole; None if that was not asked for."""
        options = self._options
        if self._loader is None and options.state_url is not None:
            prepare_tables(options.state_url)
            self._loader = Loader(options, TableStore(options.state_url, options.pipeline))
        return self._loader

    def _opened(self, first: Offset, last: Offset) -> ChangeLog:
        """The log; if nothing has been read yet, from where the changes between two offsets, and after them, begin."""
        if self._log is None:
            self._refuse_foreign(first)
            # Of an attempt that is not complete nothing is needed: it has died with the process that made it.
            load = next((each.load for each in (first, last) if each.load is not None and each.load.is_complete), None)
            record = None if self._loads is None else self._loads.save_confirmed
            self._log = ChangeLog(self._capture_settings(), first.position, load, record)
            self._initial = self._initial or first
        return self._log

    def _refuse_foreign(self, offset: Offset) -> None:
        lineage = self._lineage()
        if (offset.system, offset.slot) != (lineage.system_identifier, lineage.slot):
            raise PositionError(
                f"the checkpoint directory is of slot {offset.slot!r} on server {offset.system}, and this is slot "
                f"{lineage.slot!r} on server {lineage.system_identifier}; name another checkpoint directory, or remove this "
                "one"
            )
        if offset.timeline != _timeline(lineage, offset.position):
            raise SlotLost(
                f"the checkpoint is at {offset.position.commit_lsn} on timeline {offset.timeline}, which is not part of "
                f"this server's history (timeline {lineage.timeline}): a standby that lagged when it was promoted; copy "
                "the tables to the sinks anew under another pipeline name"
            )

    def _rebased(self, offset: Offset) -> Offset:
        """The offset, or if it is of a slot that was lost, where its successor begins, with all tables yet to be read."""
        if self._loads is None:
            return offset
        if self._generation is None:
            record = self._loads.ensure_slot(offset.position.commit_lsn)
            self._generation, self._since = record.generation, record.since or Lsn(0)
        if offset.generation == self._generation:
            return offset
        if offset.slot != self._options.slot:
            self._refuse_foreign(offset)
        tables = self._loads.enlist()
        since = Position(self._since, 0)
        begun = self._offset_at(since, tables, self._generation)
        return replace(begun, lanes=offset.lanes, rule=offset.rule)

    def _slot_offset(self, tables: list[PipelineTable], generation: str) -> Offset:
        """Where the slot is: everything before it was delivered, and nothing after it is lost."""
        options = self._options
        with translated(options.url), closing(connect_sync(options.url)) as connection:
            slot = require_usable(find_slot(connection, options.slot), options.slot, connection.info.dbname)
        return self._offset_at(Position(slot.confirmed_flush_lsn or Lsn(0), 0), tables, generation)

    def _offset_at(self, position: Position, tables: list[PipelineTable], generation: str) -> Offset:
        options, lineage = self._options, self._lineage()
        return Offset(
            lineage.system_identifier,
            options.slot,
            position,
            _timeline(lineage, position),
            options.lanes,
            options.lane_by,
            dropped=tuple(table.key for table in tables if table.state != "streaming" and table.snapshot is None),
            added=tuple(table.key for table in tables if table.is_added),
            generation=generation,
            joins=tuple(
                Join((table.key,), SnapshotRead(Snapshot.parse(table.snapshot), table.until_lsn))
                for table in tables
                if table.snapshot is not None and table.until_lsn is not None and table.until_lsn > position.commit_lsn
            ),
        )

    def _lineage(self) -> Lineage:
        with ReplicationConnection(self._options.url) as replication:
            return replication.lineage(self._options.slot)

    def _capture_settings(self) -> CaptureSettings:
        options = self._options
        settings = CaptureSettings(
            url=options.url,
            slot=options.slot,
            publications=(options.publication,),
            streaming=options.streaming,
            batch_bytes=min(_PIECE_BYTES, options.max_bytes),
            buffer_bytes=options.max_bytes,
            confirm_idle=options.state_url is None,
            status_interval=options.status_interval,
        )
        spill = options.spill_directory
        return settings if spill is None else replace(settings, spill_directory=Path(spill))


def _timeline(lineage: Lineage, position: Position) -> int:
    """The timeline that wrote what lies before a position."""
    return lineage.timeline_of(Lsn(max(0, position.commit_lsn - 1)))


def _oids(names: Mapping[int, set[Name]], join: Join) -> frozenset[int]:
    return frozenset(oid for oid, called in names.items() if not called.isdisjoint(join.tables))


def _quoted(name: Name) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in name)
