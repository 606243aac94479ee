"""What tests of sinks deliver: frames of changes that a real server sent, as a source would hand them over."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from headwater.capture import Capture, CaptureSettings, CatalogTypes
from headwater.model import Change, Lsn, Position
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.cut import Index
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.replication.slot import create_slot
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.postgres.types import Types, to_json
from headwater.spark.frame import Frame, pack
from headwater.spark.settings import LaneRule
from headwater.spark.shape import ENVELOPE, WIRE
from headwater.spark.sinks import Span
from headwater.spark.sinks.lines import json_object
from headwater.spark.sources.lanes import self_contained, split

# A value that the changes have, and one of the same length that a server would never send.
GOOD_AMOUNT, BAD_AMOUNT = b"1234.56", b"no-num!"
_START = Position(Lsn(0), 0)


@dataclass(frozen=True)
class Delivery:
    """A range and its frames."""

    frames: tuple[Frame, ...]
    span: Span

    @property
    def changes(self) -> list[Change]:
        """In commit order, with values as JSON fragments."""
        return sorted(_changes(self.frames), key=lambda change: change.position)

    def between(self, start: Position, end: Position) -> "Delivery":
        parts = ((frame, Index.of(frame.batch).between(start, end)) for frame in self.frames)
        kept = tuple(replace(frame, batch=batch) for frame, batch in parts if batch is not None)
        return Delivery(kept, Span(start, end))

    def split(self, lanes: int) -> "Delivery":
        """The same changes in lanes by table."""
        first = self.frames[0]
        laned = split([frame.batch for frame in self.frames], lanes, LaneRule.TABLE)
        return Delivery(tuple(Frame(x.lane, x.key_lane, x.batch, first.own_types, first.lineage) for x in laned), self.span)

    def spoiled(self, good: bytes = GOOD_AMOUNT, bad: bytes = BAD_AMOUNT) -> "Delivery":
        """The same with a value that is none of its type."""
        return replace(self, frames=tuple(_changed(frame, frame.batch.data.replace(good, bad)) for frame in self.frames))

    def torn(self) -> "Delivery":
        """The same with a last message in the last frame that nobody can read."""
        *rest, last = self.frames
        data = bytearray(last.batch.data)
        # Behind the tag and the oid of the last row message: what kind of row it is.
        at = max(int(last.batch.bounds[i]) for i in range(len(last.batch)) if chr(last.batch.message(i)[0]) in "IUD") + 5
        data[at] = ord("?")
        return replace(self, frames=(*rest, _changed(last, bytes(data))))

    def wire(self, spark: SparkSession) -> DataFrame:
        """One row a frame; a lane is a partition, as the source makes them."""
        rows = [(frame.lane, frame.batch.changes, pack(_packable(frame))) for frame in self.frames]
        lanes = len({frame.lane for frame in self.frames})
        return spark.createDataFrame(rows, WIRE).repartition(max(lanes, 1), "lane").sortWithinPartitions("lane")

    def envelopes(self, spark: SparkSession) -> DataFrame:
        rows = [envelope_of(change) for change in self.changes]
        return spark.createDataFrame(rows, ENVELOPE).coalesce(1)


def capture(url: str, statements: Sequence[str], *, tables: Sequence[str], setup: Sequence[str] = ()) -> Delivery:
    """What a server sends of statements, each a transaction, all in one lane."""
    with closing(connect_sync(url)) as connection:
        for statement in (*setup, "create table fence (id int primary key)"):
            connection.execute(statement.encode())
        connection.execute(f"create publication pub for table {', '.join((*tables, 'fence'))}".encode())
        with closing(ReplicationConnection(url)) as replication:
            create_slot(replication, "hw")
        for statement in (*statements, "insert into fence values (1)"):
            connection.execute(statement.encode())
    frames: list[Frame] = []
    types = CatalogTypes(url)
    with Capture(CaptureSettings(url=url, slot="hw", publications=("pub",))) as reader:
        while not (fences := [change for change in _changes(frames) if change.table == "fence"]):
            batch = reader.take(15)
            assert batch is not None, "nothing came"
            known = types.of(batch)
            own = tuple(known[oid] for oid in known if oid not in Types.builtin())
            frames.append(Frame(0, None, batch, own, reader.lineage))
    end = Position(fences[0].position.commit_lsn, 0)
    return Delivery(tuple(frames), Span(_START, end)).between(_START, end)


def _changes(frames: Sequence[Frame]) -> list[Change]:
    return [c for frame in frames for c in decode_rows(frame.batch, frame.types, to_json) if isinstance(c, Change)]


def _packable(frame: Frame) -> Frame:
    return replace(frame, batch=self_contained(frame.batch))


def _changed(frame: Frame, data: bytes) -> Frame:
    return replace(frame, batch=replace(frame.batch, data=data))


def envelope_of(change: Change) -> tuple[object, ...]:
    """A change as a row of the DataFrame `changes`."""
    parts = (None if row is None else json_object(row) for row in (change.key, change.before, change.after))
    place = (int(change.position.commit_lsn), change.position.ordinal, change.xid, change.committed_at)
    return (*place, str(change.op), change.schema, change.table, *parts, list(change.unchanged))
