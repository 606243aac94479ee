"""What Spark's tasks do: publish the messages of a partition in order, and say in one row what became of them.

It travels to the executors as a value. Errors come back in that row, since Spark would hand on no more than their text.
"""

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from headwater.brokers.base import Broker
from headwater.brokers.registry import BrokerAccess, open_broker
from headwater.errors import BrokerError, SinkError, SinkUnavailable
from headwater.model import Messages
from headwater.spark.letters import Letter
from headwater.spark.sinks.brokers.parts import MakeLetters, Parts
from headwater.spark.sinks.sink import Written

OUTCOME: Final = StructType([StructField("outcome", BinaryType())])
_SCHEMA: Final = pa.schema([("outcome", pa.binary())])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a partition; `failure` is what kept the rest from being published, and whether that may pass."""

    written: Written = field(default_factory=Written)
    letters: tuple[Letter, ...] = ()
    failure: tuple[str, bool] | None = None

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(self.written + other.written, self.letters + other.letters, self.failure or other.failure)

    def require_success(self, sink: str) -> None:
        """Raise what kept messages from being published."""
        if self.failure is not None:
            reason, may_pass = self.failure
            raise SinkUnavailable(sink, reason) if may_pass else SinkError(sink, reason)


@dataclass(frozen=True, slots=True)
class PublishTask:
    """Publishes one partition of a batch: a lane, in its order."""

    parts: Parts
    access: BrokerAccess = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome = Outcome()
        try:
            for given, letters in self.parts.of(batches):
                outcome += Outcome(Written(letters=len(letters)), tuple(letters))
                for messages, refused in given:
                    outcome += self._publish(messages, refused)
        except BrokerError as exc:
            outcome += Outcome(failure=(str(exc), exc.retryable))
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(outcome)], pa.binary())], schema=_SCHEMA)

    def _publish(self, messages: Messages, refused: MakeLetters) -> Outcome:
        # Most partitions of a quiet source have nothing, and need no connection.
        if not len(messages):
            return Outcome()
        published = kept_broker(pickle.dumps(self.access)).publish(messages)
        letters = tuple(refused({one.index: one.reason for one in published.refused}))
        return Outcome(Written(published.stored, published.duplicates, len(letters)), letters)


# As many as the pipelines of one Spark application are likely to publish to at a time.
@lru_cache(maxsize=8)
def kept_broker(access: bytes) -> Broker:
    """The broker of this process, by its pickled access: Spark's Python workers serve many tasks, one at a time."""
    return open_broker(pickle.loads(access))
