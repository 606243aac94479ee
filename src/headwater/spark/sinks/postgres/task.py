"""What Spark's tasks do: take the rows of a partition, write them to the target, and say in one row what became of them.

It travels to the executors as a value. Errors come back in that row, since Spark would hand on no more than their text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.errors import SinkError, SinkFenced, SinkUnavailable
from headwater.model import Lineage
from headwater.spark.frame import unpack
from headwater.spark.letters import OpenLetter
from headwater.spark.shape import Shape
from headwater.spark.sinks.postgres.envelope import Envelopes
from headwater.spark.sinks.postgres.lane import Contended, Inputs, LaneWriter
from headwater.spark.sinks.postgres.session import Address, kept_session
from headwater.spark.sinks.postgres.wire import Frames
from headwater.spark.sinks.sink import Span, Written

OUTCOME: Final = StructType(
    [
        StructField("changes", LongType()),
        StructField("skipped", LongType()),
        StructField("letters", LongType()),
        StructField("failure", StringType()),
        StructField("reason", StringType()),
    ]
)
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
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return
        written, failure, reason = Written(), None, None
        try:
            written = self._write(pa.Table.from_batches(found))
        except Contended:
            failure = _CONTENDED
        except SinkError as error:
            failure, reason = next((name for name, kind in _FAILURES.items() if type(error) is kind), _FAILED), error.reason
        outcome = {"changes": [written.changes], "skipped": [written.skipped], "letters": [written.letters]}
        text = {"failure": pa.array([failure], pa.string()), "reason": pa.array([reason], pa.string())}
        yield pa.RecordBatch.from_pydict({**outcome, **text})

    def _write(self, rows: pa.Table) -> Written:
        session = kept_session(self.address.url)
        writer = LaneWriter(self.address, session, self.epoch, is_alone=self.is_alone)
        return writer.write(self._inputs(rows), self.span, self.open_letters)

    def _inputs(self, rows: pa.Table) -> Inputs:
        if self.shape is Shape.WIRE:
            return Frames([unpack(frame) for frame in rows.column("frame").to_pylist()])
        return Envelopes(rows.to_pylist(), self.lineage, self.address.sink)


def total(sink: str, outcomes: Iterable[Row]) -> Written | None:
    """What all tasks did; None if some are to be done again, all in one. Raises what a task failed for."""
    found = list(outcomes)
    for name, kind in _FAILURES.items():
        for row in found:
            if row["failure"] == name:
                raise kind(sink, row["reason"])
    if any(row["failure"] == _CONTENDED for row in found):
        return None
    return sum((Written(row["changes"], row["skipped"], row["letters"]) for row in found), Written())
