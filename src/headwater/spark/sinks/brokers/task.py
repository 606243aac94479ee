"""What Spark's tasks do: publish the messages of a partition in order, and say in one row what became of them.

It travels to the executors as a value. Errors come back in that row, since Spark would hand on no more than their text.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from headwater import failpoints
from headwater.brokers.base import Broker
from headwater.brokers.registry import BrokerAccess, open_broker
from headwater.errors import BrokerError, SinkError, SinkUnavailable
from headwater.model import Messages
from headwater.spark.letters import Letter
from headwater.spark.sinks.brokers.parts import Given, Parts
from headwater.spark.sinks.sink import Written

OUTCOME: Final = StructType([StructField("outcome", BinaryType())])
_SCHEMA: Final = pa.schema([("outcome", pa.binary())])
# What a task holds besides what is being published, at most: enough that a broker is not kept waiting between two calls.
_WAITING_BYTES: Final = 8 << 20


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
        outcome = self._write(batches)
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(outcome)], pa.binary())], schema=_SCHEMA)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Take in what comes while what came before is published, and publish all of that at once: one wait for many."""
        total, before = Outcome(), _done(Outcome())
        waiting: list[Given] = []
        with ThreadPoolExecutor(1, thread_name_prefix="publish") as pool:
            for given, letters in self.parts.of(batches):
                total += Outcome(Written(letters=len(letters)), tuple(letters))
                # Most partitions of a quiet source have nothing, and need no connection.
                waiting += [one for one in given if len(one[0])]
                if waiting and (before.done() or _bytes(waiting) >= _WAITING_BYTES):
                    total += before.result()
                    if total.failure is not None:
                        return total
                    before, waiting = pool.submit(self._publish, waiting), []
            total += before.result()
            if waiting and total.failure is None:
                total += pool.submit(self._publish, waiting).result()
        return total

    def _publish(self, given: Sequence[Given]) -> Outcome:
        messages = Messages(pa.concat_batches([one.rows for one, _ in given]))
        try:
            published = kept_broker(pickle.dumps(self.access)).publish(messages)
        except BrokerError as exc:
            return Outcome(failure=(str(exc), exc.retryable))
        failpoints.hit("broker_sink.acknowledged")
        letters = tuple(_letters(given, {one.index: one.reason for one in published.refused}))
        return Outcome(Written(published.stored, published.duplicates, len(letters)), letters)


def _letters(given: Sequence[Given], reasons: Mapping[int, str]) -> Iterator[Letter]:
    """The letters of messages by their place among all of those given."""
    start = 0
    for messages, refused in given:
        end = start + len(messages)
        own = {place - start: reason for place, reason in reasons.items() if start <= place < end}
        if own:
            yield from refused(own)
        start = end


def _bytes(given: Sequence[Given]) -> int:
    return sum(messages.rows.nbytes for messages, _ in given)


def _done(outcome: Outcome) -> "Future[Outcome]":
    future: Future[Outcome] = Future()
    future.set_result(outcome)
    return future


# As many as the pipelines of one Spark application are likely to publish to at a time.
@lru_cache(maxsize=8)
def kept_broker(access: bytes) -> Broker:
    """The broker of this process, by its pickled access: Spark's Python workers serve many tasks, one at a time."""
    return open_broker(pickle.loads(access))
