"""A source that is altered while a sink follows it: the real reader and the real sink, driven as Spark drives them."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from headwater.capture.tables import TableStore
from headwater.postgres.connect import connect_sync
from headwater.spark.frame import Chunk, Frame, unpack
from headwater.spark.settings import LaneRule, SchemaChanges
from headwater.spark.shape import Shape
from headwater.spark.sinks import Loading, Span, Written
from headwater.spark.sinks.postgres.envelope import Envelopes
from headwater.spark.sinks.postgres.lane import LaneWriter
from headwater.spark.sinks.postgres.load import PieceLoader, chunk_pieces, envelope_rows
from headwater.spark.sinks.postgres.prepare import read_tables
from headwater.spark.sinks.postgres.swap import TableSwapper
from headwater.spark.sinks.postgres.wire import Frames
from headwater.spark.sources.adbc import close_kept
from headwater.spark.sources.changes import ChangesReader, LanePartition
from headwater.spark.sources.offset import Offset
from headwater.spark.sources.step import step_between
from tests.support.capture.change_streams import new_reader
from tests.support.sinks.postgres_sink_run import LINEAGE, PIPELINE, SINK, Applying, applying
from tests.support.waiting import eventually


@dataclass
class Following:
    """A pipeline by hand; `at` is the offset that is committed, `notes` say what was done to the target."""

    source: str
    target: str
    shape: Shape
    reader: ChangesReader
    run: Applying
    at: dict[str, Any] = field(default_factory=dict)
    begun: str | None = None
    notes: list[str] = field(default_factory=list)
    written: Written = field(default_factory=Written)

    def settle(self) -> None:
        """Deliver all that is committed by now, and all tables that are asked for."""
        self.reader.prepareForTriggerAvailableNow()
        eventually(lambda: not self.step() and not self.wanted(), seconds=60)

    def step(self) -> bool:
        """Deliver the next batch, if there is one."""
        end = self.plan()
        if end is None:
            return False
        self.deliver(end)
        return True

    def plan(self) -> dict[str, Any] | None:
        """The end of the next batch."""
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        return None if end == self.at else end

    def deliver(self, end: dict[str, Any]) -> None:
        """One batch, which is committed then."""
        step = step_between(Offset.from_json(self.at), Offset.from_json(end))
        load, loading = step.load, None
        if load is not None:
            loading = Loading(load.attempt, load.tables, step.first, step.last, step.completes, load.position)
            self._prepare(loading)
        span = Span(step.start, step.end, loading)
        for number, partition in enumerate(self.reader.partitions(self.at, end)):
            if isinstance(partition, LanePartition):
                self._write(partition, span)
            else:
                assert loading is not None
                self._load(partition, number, loading)
        self.at = end

    def wanted(self) -> list[str]:
        """The tables that are to be read as a whole."""
        with closing(TableStore(self.source, PIPELINE)) as store:
            return [table.name for table in store.tables() if table.state == "wanted"]

    def _prepare(self, loading: Loading) -> None:
        run = self.run
        swapper = TableSwapper(run.address, run.session, run.epoch, LINEAGE)
        if self.begun != loading.attempt:
            swapper.begin(loading, read_tables(self.source, loading.tables), creates=True)
            self.begun = loading.attempt
        if loading.is_complete:
            self.written += swapper.swap(loading)

    def _write(self, partition: LanePartition, span: Span) -> None:
        writer = LaneWriter(self.run.address, self.run.session, self.run.epoch, is_alone=True)
        if self.shape is Shape.WIRE:
            unpacked = [unpack(frame) for frame in partition.frames]
            inputs: Frames | Envelopes = Frames([frame for frame in unpacked if isinstance(frame, Frame)])
        else:
            rows = [row for batch in self.reader.read(partition) for row in batch.to_pylist()]
            inputs = Envelopes(rows, LINEAGE, SINK)
        self.written += writer.write(inputs, span, self.run.open_letters())
        self.notes += writer.notes

    def _load(self, partition: Any, number: int, loading: Loading) -> None:
        loader = PieceLoader(self.run.address, self.run.session, self.run.epoch, loading)
        batches = list(self.reader.read(partition))
        if self.shape is Shape.ENVELOPE:
            rows = envelope_rows(batches, LINEAGE, loading.attempt, self.run.address)
            self.written += loader.load(rows, loading.first, number)
            return
        chunks = [unpack(packed) for batch in batches for packed in batch.column("frame").to_pylist()]
        parted = chunk_pieces([chunk for chunk in chunks if isinstance(chunk, Chunk)], loading, self.run.address)
        self.written += sum((loader.load(rows, piece) for piece, rows in parted), Written())


@contextmanager
def following(
    source: str,
    target: str,
    tables: Sequence[str],
    *,
    rule: SchemaChanges = SchemaChanges.EVOLVE,
    shape: Shape = Shape.WIRE,
    lane_by: LaneRule = LaneRule.TABLE,
    snapshot: str = "initial",
) -> Iterator[Following]:
    """All that is there by now is in the target, and its changes are followed."""
    reader = new_reader(
        url=source,
        slot="hw",
        tables=",".join(tables),
        shape=shape,
        lanes=3,
        laneBy=lane_by,
        snapshot=snapshot,
        pipeline=PIPELINE,
        stateUrl=source,
    )
    try:
        at = reader.initialOffset()
        with applying(source, target, tables, rule=rule) as run:
            found = Following(source, target, shape, reader, run, at)
            found.settle()
            found.written = Written()
            yield found
    finally:
        reader.stop()
        close_kept()


def contents(url: str, table: str) -> list[str]:
    """All rows, with the names of their columns."""
    with closing(connect_sync(url)) as connection:
        query = f'select to_jsonb(t)::text from {table} as t order by to_jsonb(t)::text collate "C"'  # noqa: S608 - a table of the test
        return [row for (row,) in connection.execute(query.encode()).fetchall()]


def types(url: str, table: str) -> dict[str, str]:
    with closing(connect_sync(url)) as connection:
        query = (
            "select attname::text, format_type(atttypid, atttypmod) from pg_attribute "
            "where attrelid = %s::regclass and attnum > 0 and not attisdropped"
        )
        return dict(connection.execute(query, [table]).fetchall())


def reasons(url: str, table: str) -> str:
    """Why a table was last asked to be read as a whole."""
    with closing(connect_sync(url)) as connection:
        query = "select reason from headwater.pipeline_table where pipeline = %s and table_name = %s"
        ((found,),) = connection.execute(query, [PIPELINE, table]).fetchall()
        return str(found)
