"""What Spark's tasks do: encode the changes of a partition, publish them, and say in one row what became of them.

It travels to the executors as a value. Errors come back in that row, since Spark would hand on no more than their text. All
changes of a table are in one task, which is the only writer of the table's subject; rows of whole tables are in several.
"""

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StructField, StructType

from headwater import failpoints
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.publisher import Publisher
from headwater.creek.names import Names
from headwater.errors import BrokerError, ConnectionLost, SinkError, SinkUnavailable
from headwater.model import Lineage, Lsn
from headwater.postgres.replication.columnar import Ints
from headwater.spark.frame import Chunk, unpack
from headwater.spark.letters import Letter
from headwater.spark.rules import Encoding
from headwater.spark.shape import Shape
from headwater.spark.sinks.nats.outgoing import CloudEvents, Messages, chunk_bytes, prepare, too_large
from headwater.spark.sinks.nats.parts import CreekParts, JsonParts, Part, Whose
from headwater.spark.sinks.nats.schemas import Announced, Announcer
from headwater.spark.sinks.sink import Written

OUTCOME: Final = StructType([StructField("outcome", BinaryType())])
_SCHEMA: Final = pa.schema([("outcome", pa.binary())])
_CONTENT_TYPES: Final = {Encoding.CREEK: "application/avro", Encoding.JSON: "application/json"}


@dataclass(frozen=True, slots=True)
class Address:
    """Which sink of which pipeline, and where and how it publishes; `source_url` is the database with the schemas.

    `system_identifier` is that of the server with it, for ids and for the source of CloudEvents.
    """

    pipeline: str
    sink: str
    access: NatsAccess
    names: Names
    encoding: Encoding
    cloudevents: bool
    system_identifier: str
    source_url: str = field(repr=False)

    @property
    def whose(self) -> Whose:
        return Whose(self.pipeline, self.sink, self.names)

    @property
    def events(self) -> CloudEvents | None:
        if not self.cloudevents:
            return None
        database = quote(self.names.database, safe="")
        return CloudEvents(f"/postgresql/{self.system_identifier}/{database}", _CONTENT_TYPES[self.encoding])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a partition: `ops` counts what was published, by operation and table.

    `large` are rows of whole tables that take several packets, which other writers of the subject must not come between:
    they are left for a task that is alone. `failure` is what kept the rest from being published, and whether that may pass.
    """

    written: Written = field(default_factory=Written)
    letters: tuple[Letter, ...] = ()
    announced: Announced = field(default_factory=Announced)
    ops: Mapping[tuple[str, str], int] = field(default_factory=dict)
    large: int = 0
    failure: tuple[str, bool] | None = None

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            self.written + other.written,
            self.letters + other.letters,
            self.announced + other.announced,
            Counter(self.ops) + Counter(other.ops),
            self.large + other.large,
            self.failure or other.failure,
        )

    def require_success(self, sink: str) -> None:
        """Raise what kept messages from being published."""
        if self.failure is not None:
            reason, may_pass = self.failure
            raise SinkUnavailable(sink, reason) if may_pass else SinkError(sink, reason)


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Publishes one partition of a batch. `previous` is the commit before it.

    `attempt` is the one at reading whole tables that has rows in the batch. With `only_large` there is no other task, and it
    publishes the rows that others have left.
    """

    address: Address
    shape: Shape
    lineage: Lineage | None
    announced: Announced
    attempt: str
    previous: Lsn
    only_large: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            outcome = self._write(batches)
        except (BrokerError, ConnectionLost) as exc:
            outcome = Outcome(failure=(str(exc), exc.retryable))
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(outcome)], pa.binary())], schema=_SCHEMA)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
        """Encode one frame while the one before it is published: the one computes, the other mostly waits."""
        writer, total, before = None, Outcome(), _done(Outcome())
        with ThreadPoolExecutor(1, thread_name_prefix="publish") as pool:
            for parts, letters in self._encoded(batches):
                total += before.result() + Outcome(Written(letters=len(letters)), tuple(letters))
                # Most partitions of a quiet source have nothing, and need no connection.
                writer = writer or Writer(self.address, kept_publisher(self.address.access), self.announced)
                before = pool.submit(writer.write_all, parts, only_large=self.only_large)
            total += before.result()
        if writer is not None:
            failpoints.hit("broker_sink.acknowledged")
        return total if writer is None else replace(total, announced=writer.added)

    def _encoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[list[Part], list[Letter]]]:
        address = self.address
        if self.shape is Shape.ENVELOPE:
            if self.lineage is None:
                raise SinkError(address.sink, "it was not told what positions belong to; build it with a lineage")
            for batch in batches:
                if batch.num_rows:
                    yield JsonParts(address.whose).of_envelopes(batch, self.lineage, self.attempt)
            return
        is_json = address.encoding is Encoding.JSON
        encoder = JsonParts(address.whose) if is_json else CreekParts(address.whose, self.previous)
        for batch in batches:
            for packed in batch["frame"]:
                rows = unpack(packed.as_buffer().to_pybytes())
                if isinstance(rows, Chunk) or not self.only_large:
                    yield encoder.of(rows)


class Writer:
    """Publishes what is encoded, through one publisher."""

    def __init__(self, address: Address, publisher: Publisher, announced: Announced) -> None:
        self._address, self._publisher = address, publisher
        self._announcer = Announcer(address.names, address.system_identifier, address.source_url, publisher, announced)

    @property
    def added(self) -> Announced:
        """The schemas that it has published."""
        return self._announcer.added

    def write_all(self, parts: Sequence[Part], *, only_large: bool = False) -> Outcome:
        """Publish parts one after the other."""
        return sum((self.write(part, only_large=only_large) for part in parts), Outcome())

    def write(self, part: Part, *, only_large: bool = False) -> Outcome:
        """Publish a part; all of it is durable, or letters, on return, but for large rows that have to wait."""
        in_packets = self._address.encoding is Encoding.CREEK
        messages, kept, large = part.messages, np.arange(len(part.messages)), 0
        if part.is_read and in_packets:
            is_large = self._is_large(messages)
            kept = np.flatnonzero(is_large == only_large)
            large = 0 if only_large else int(is_large.sum())
        hopeless = too_large(messages, self._publisher.max_payload, in_packets=in_packets)
        reasons = dict.fromkeys(np.intersect1d(hopeless, kept).tolist(), _TOO_LARGE)
        kept = np.setdiff1d(kept, hopeless)
        published = Written()
        if len(kept):
            if part.use is not None:
                use, occasion = part.use, messages.ids[int(kept[0])].as_py()
                self._announcer.require(use.relation, use.schema, use.widened, occasion)
            published, refused = self._publish(messages.taken(kept), in_packets=in_packets)
            reasons |= {int(kept[place]): reason for place, reason in refused.items()}
        letters = tuple(part.letters(reasons)) if reasons else ()
        written = published + Written(letters=len(letters))
        return Outcome(written, letters, ops=_counted(messages, kept), large=large)

    def _publish(self, messages: Messages, *, in_packets: bool) -> tuple[Written, dict[int, str]]:
        prepared = prepare(messages, self._publisher.max_payload, self._address.events, in_packets=in_packets)
        done = self._publisher.publish(prepared.outgoing)
        refused = {int(prepared.messages[one.index]): f"NATS refused it: {one.reason}" for one in done.refused}
        # Of a message in several packets all are new or none is, but for one that was cut off half-way.
        share = len(messages) / max(1, len(prepared.messages))
        skipped = min(round(done.duplicates * share), len(messages) - len(refused))
        return Written(len(messages) - len(refused) - skipped, skipped), refused

    def _is_large(self, messages: Messages) -> np.ndarray:
        sizes: Ints = pc.binary_length(messages.payloads).to_numpy(zero_copy_only=False)
        return sizes >= chunk_bytes(self._publisher.max_payload)


_TOO_LARGE: Final = "it is larger than the NATS server's max_payload lets a message be"


# As many servers as the pipelines of one Spark application are likely to publish to at a time.
@lru_cache(maxsize=8)
def kept_publisher(access: NatsAccess) -> Publisher:
    """The publisher of this process: Spark's Python workers serve many tasks, one at a time."""
    return Publisher(access)


def _done(outcome: Outcome) -> Future[Outcome]:
    future: Future[Outcome] = Future()
    future.set_result(outcome)
    return future


def _counted(messages: Messages, kept: Ints) -> dict[tuple[str, str], int]:
    ops = messages.ops if len(kept) == len(messages) else messages.ops.take(pa.array(kept))
    return {(one["values"], messages.table): one["counts"] for one in ops.value_counts().to_pylist()}
