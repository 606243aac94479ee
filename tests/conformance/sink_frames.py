"""What tests of sinks deliver: frames of changes that a real server sent, as a source would hand them over."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import pairwise

import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession

from headwater.capture import Capture, CaptureSettings, CatalogTypes
from headwater.model import Change, Lsn, Op, Position
from headwater.postgres.catalog import list_columns, list_tables, load_types
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.replication.cut import Index
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.replication.slot import create_slot
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.postgres.statements import Query, fetch_sync
from headwater.postgres.types import Types, to_json
from headwater.spark.frame import Chunk, Frame, pack
from headwater.spark.letters import frame_of_rows
from headwater.spark.settings import LaneRule
from headwater.spark.shape import ENVELOPE, WIRE
from headwater.spark.sinks import Loading, Span
from headwater.spark.sinks.lines import json_object
from headwater.spark.sources.lanes import self_contained, split

# A value that the changes have, and one of the same length that a server would never send.
GOOD_AMOUNT, BAD_AMOUNT = b"1234.56", b"no-num!"
_START = Position(Lsn(0), 0)
END_OF_WAL = Query("end_of_wal", "select pg_current_wal_insert_lsn()").bind(Lsn)


@dataclass(frozen=True)
class Delivery:
    """A range and its frames, and rows of whole tables."""

    frames: tuple[Frame, ...]
    span: Span
    chunks: tuple[Chunk, ...] = ()

    @property
    def changes(self) -> list[Change]:
        """In commit order, with values as JSON fragments."""
        return sorted(_changes(self.frames), key=lambda change: change.position)

    def frame_at(self, position: Position) -> Frame:
        """The frame with a change in it; how a server's messages come decides which one that is."""
        return next(frame for frame in self.frames if any(change.position == position for change in _changes([frame])))

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
        """One row a frame or chunk; a lane is a partition, and so is a piece, as the source makes them."""
        rows = [(frame.lane, frame.batch.changes, pack(_packable(frame))) for frame in self.frames]
        lanes = len({frame.lane for frame in self.frames})
        changes = spark.createDataFrame(rows, WIRE).repartition(max(lanes, 1), "lane").sortWithinPartitions("lane")
        pieces = [[(-1, chunk.rows.num_rows, pack(chunk)) for chunk in piece] for piece in self.pieces]
        return reduce(DataFrame.union, (spark.createDataFrame(piece, WIRE).coalesce(1) for piece in pieces), changes)

    def envelopes(self, spark: SparkSession) -> DataFrame:
        changes = spark.createDataFrame([envelope_of(change) for change in self.changes], ENVELOPE).coalesce(1)
        pieces = [[envelope_of(change) for chunk in piece for change in rows_read(chunk)] for piece in self.pieces]
        return reduce(DataFrame.union, (spark.createDataFrame(piece, ENVELOPE).coalesce(1) for piece in pieces), changes)

    @property
    def pieces(self) -> list[list[Chunk]]:
        numbers = sorted({chunk.piece for chunk in self.chunks})
        return [[chunk for chunk in self.chunks if chunk.piece == number] for number in numbers]


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


@dataclass(frozen=True)
class Reading:
    """Tables read as a whole by an attempt, in pieces."""

    attempt: str
    tables: tuple[str, ...]
    chunks: tuple[Chunk, ...]
    position: Position

    @property
    def rows(self) -> list[Change]:
        """All of them as changes, with values as JSON fragments."""
        return [row for chunk in self.chunks for row in rows_read(chunk)]

    def part(self, first: int, last: int) -> Delivery:
        """The batch of some of its pieces."""
        chunks = tuple(chunk for chunk in self.chunks if first <= chunk.piece < last)
        return Delivery((), self._span(first, last, is_complete=False), chunks)

    @property
    def whole(self) -> Delivery:
        return self.part(0, self.last)

    @property
    def end(self) -> Delivery:
        """The batch that completes it."""
        return Delivery((), self._span(self.last, self.last, is_complete=True))

    @property
    def last(self) -> int:
        return max((chunk.piece for chunk in self.chunks), default=-1) + 1

    def spoiled(self, good: str, bad: str) -> "Reading":
        """The same with a value that is none of its type."""
        return replace(self, chunks=tuple(replace(chunk, rows=_respelled(chunk.rows, good, bad)) for chunk in self.chunks))

    def _span(self, first: int, last: int, *, is_complete: bool) -> Span:
        tables = tuple(("public", table) for table in self.tables)
        return Span(self.position, self.position, Loading(self.attempt, tables, first, last, is_complete, self.position))


def read(url: str, attempt: str, tables: Sequence[str], *, pieces: int = 2) -> Reading:
    """The tables as they are now, each in pieces of two chunks; nothing writes to them meanwhile."""
    chunks: list[Chunk] = []
    with closing(connect_sync(url)) as connection, closing(ReplicationConnection(url)) as replication:
        lineage = replication.lineage("hw")
        (until,) = fetch_sync(connection, END_OF_WAL)
        known = {table.name: table for table in list_tables(connection)}
        own_types = tuple(load_types(connection))
        for name in tables:
            table = known[name]
            columns = [column for column in list_columns(connection, [table.oid]) if not column.generated]
            described = [RelationColumn(c.name, c.name in table.identity, c.type_oid, c.typmod) for c in columns]
            relation = Relation(table.oid, table.schema, name, table.replica_identity, tuple(described))
            texts = _texts(connection, name, [column.name for column in columns])
            for rows in _parts(texts, 2 * pieces):
                piece, is_second = divmod(len(chunks), 2)
                before = chunks[-1].rows.num_rows if is_second else 0
                moment = datetime.now(UTC)
                chunks.append(Chunk(attempt, piece, before, relation, rows, own_types, lineage, until, moment))
    return Reading(attempt, tuple(tables), tuple(chunks), Position(Lsn(until), 0))


def rows_read(chunk: Chunk) -> list[Change]:
    """The rows of a chunk as changes, with values as JSON fragments."""
    return [replace(change, op=Op.READ) for change in _changes([frame_of_rows(chunk)])]


def _texts(connection: Connection, table: str, columns: Sequence[str]) -> pa.RecordBatch:
    form = sql.SQL("case when {0} is distinct from null then format('%s', {0}) end")
    shown = sql.SQL(", ").join(form.format(sql.Identifier(name)) for name in columns)
    found = connection.execute(sql.SQL("select {} from {} order by ctid").format(shown, sql.Identifier(table))).fetchall()
    arrays = [pa.array([row[number] for row in found], pa.string()) for number in range(len(columns))]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _parts(rows: pa.RecordBatch, count: int) -> Iterator[pa.RecordBatch]:
    """The rows in so many parts of about the same size, or none if there are no rows."""
    if not rows.num_rows:
        return
    bounds = [rows.num_rows * number // count for number in range(count + 1)]
    for start, end in pairwise(bounds):
        yield rows.slice(start, end - start)


def _respelled(rows: pa.RecordBatch, good: str, bad: str) -> pa.RecordBatch:
    arrays = [pa.array([bad if text == good else text for text in column.to_pylist()], pa.string()) for column in rows]
    return pa.RecordBatch.from_arrays(arrays, names=rows.schema.names)


def _changes(frames: Sequence[Frame]) -> list[Change]:
    return [c for frame in frames for c in decode_rows(frame.batch, frame.types, to_json) if isinstance(c, Change)]


def _packable(frame: Frame) -> Frame:
    return replace(frame, batch=self_contained(frame.batch))


def _changed(frame: Frame, data: bytes) -> Frame:
    return replace(frame, batch=replace(frame.batch, data=data))


def envelope_of(change: Change) -> tuple[object, ...]:
    """A change as a row of the DataFrame `changes`."""
    parts = (None if row is None else json_object(row) for row in (change.key, change.before, change.after))
    xid = None if change.op is Op.READ else change.xid
    place = (int(change.position.commit_lsn), change.position.ordinal, xid, change.committed_at)
    return (*place, str(change.op), change.schema, change.table, *parts, list(change.unchanged))
