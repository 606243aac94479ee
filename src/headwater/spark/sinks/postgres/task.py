"""What Spark's tasks do: take the rows of a partition, write them to the target, and say in one row what became of them.

It travels to the executors as a value. Errors come back in that row, since Spark would hand on no more than their text.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from headwater.errors import SinkError, SinkFenced, SinkUnavailable
from headwater.model import Lineage, Op
from headwater.spark.frame import Chunk, Frame, unpack
from headwater.spark.letters import OpenLetter
from headwater.spark.shape import Shape
from headwater.spark.sinks.postgres.envelope import Envelopes
from headwater.spark.sinks.postgres.lane import Contended, Inputs, LaneWriter
from headwater.spark.sinks.postgres.load import PieceLoader, chunk_pieces, envelope_rows
from headwater.spark.sinks.postgres.session import Address, kept_session
from headwater.spark.sinks.postgres.wire import Frames
from headwater.spark.sinks.sink import Span, Written

OUTCOME: Final = StructType(
    [
        StructField("changes", LongType()),
        StructField("skipped", LongType()),
        StructField("letters", LongType()),
        StructField("is_load", BooleanType()),
        StructField("failure", StringType()),
        StructField("reason", StringType()),
        StructField("notes", StringType()),
    ]
)
# The lane of rows that hold no changes, but rows of a whole table.
LOADED_LANE: Final = -1
_CONTENDED, _FAILED = "contended", "failed"
# The worst first: what is told when tasks failed for different reasons.
_FAILURES: Final = {"fenced": SinkFenced, _FAILED: SinkError, "unavailable": SinkUnavailable}


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes one partition of a batch; `is_alone` if there is no other."""

    address: Address
    epoch: int
    shape: Shape
    span: Span
    open_letters: tuple[OpenLetter, ...]
    lineage: Lineage
    is_alone: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        changes, loaded = self._parted(batch for batch in batches if batch.num_rows)
        if changes:
            notes: list[str] = []
            yield outcome(lambda: self._write(pa.Table.from_batches(changes), notes), notes, is_load=False)
        if loaded is not None:
            yield outcome(lambda: self._load(loaded), [], is_load=True)

    def _parted(self, batches: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch] | None]:
        """The changes, and the rows of whole tables, if there are any: those come behind, and are not held all at a time."""
        changes: list[pa.RecordBatch] = []
        for batch in batches:
            is_load = is_loaded(batch, self.shape)
            if not pc.all(is_load).as_py():
                changes.append(batch.filter(pc.invert(is_load)))
            if pc.any(is_load).as_py():
                return changes, chain([batch.filter(is_load)], batches)
        return changes, None

    def _write(self, rows: pa.Table, notes: list[str]) -> Written:
        session = kept_session(self.address.url)
        writer = LaneWriter(self.address, session, self.epoch, self.is_alone, notes)
        return writer.write(self._inputs(rows), self.span, self.open_letters)

    def _inputs(self, rows: pa.Table) -> Inputs:
        if self.shape is Shape.WIRE:
            frames = (unpack(frame) for frame in rows.column("frame").to_pylist())
            return Frames([frame for frame in frames if isinstance(frame, Frame)])
        return Envelopes(rows.to_pylist(), self.lineage, self.address.sink)

    def _load(self, batches: Iterator[pa.RecordBatch]) -> Written:
        loading = self.span.loading
        if loading is None:
            raise SinkError(self.address.sink, "rows of a whole table came in a batch that has none; report it")
        loader = PieceLoader(self.address, kept_session(self.address.url), self.epoch, loading)
        if self.shape is Shape.WIRE:
            pieces = chunk_pieces(_chunks(batches), loading, self.address)
            return sum((loader.load(rows, piece) for piece, rows in pieces), Written())
        context = TaskContext.get()
        rows = envelope_rows(batches, self.lineage, loading.attempt, self.address)
        return loader.load(rows, loading.first, context.partitionId() if context else 0)


def outcome(work: Callable[[], Written], notes: list[str], *, is_load: bool) -> pa.RecordBatch:
    """What became of a task's work, and what it was to say, as a row."""
    written, failure, reason = Written(), None, None
    try:
        written = work()
    except Contended:
        failure = _CONTENDED
    except SinkError as error:
        failure, reason = next((name for name, kind in _FAILURES.items() if type(error) is kind), _FAILED), error.reason
    counts = {"changes": [written.changes], "skipped": [written.skipped], "letters": [written.letters]}
    said = {"failure": failure, "reason": reason, "notes": "\n".join(notes) or None}
    text = {name: pa.array([word], pa.string()) for name, word in said.items()}
    return pa.RecordBatch.from_pydict({**counts, "is_load": [is_load], **text})


def is_loaded(batch: pa.RecordBatch, shape: Shape) -> pa.BooleanArray:
    """Which rows of a batch are rows of whole tables, or hold such."""
    if shape is Shape.WIRE:
        return pc.equal(batch.column("lane"), LOADED_LANE)
    return pc.fill_null(pc.equal(batch.column("op"), str(Op.READ)), False)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
    for batch in batches:
        for packed in batch.column("frame"):
            chunk = unpack(packed.as_py())
            if isinstance(chunk, Chunk):
                yield chunk


def total(sink: str, outcomes: Iterable[Row]) -> tuple[Written | None, Written]:
    """What became of changes, None if some are to be done again, all in one, and of rows of whole tables.

    Raises what a task failed for.
    """
    found = list(outcomes)
    for name, kind in _FAILURES.items():
        for row in found:
            if row["failure"] == name:
                raise kind(sink, row["reason"])
    loaded, changes = _sum(row for row in found if row["is_load"]), [row for row in found if not row["is_load"]]
    return None if any(row["failure"] == _CONTENDED for row in changes) else _sum(changes), loaded


def _sum(rows: Iterable[Row]) -> Written:
    return sum((Written(row["changes"], row["skipped"], row["letters"]) for row in rows), Written())
