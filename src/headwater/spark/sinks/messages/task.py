"""What Spark's tasks do: write the messages of a partition to the table, each exactly once.

Rows and how far the partitions of the topic are then are in one transaction, one for some megabytes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater import failpoints
from headwater.errors import SinkError
from headwater.model import Lineage, Lsn, Position
from headwater.postgres.connect import Connection
from headwater.postgres.statements import execute_sync
from headwater.spark.shape import Shape
from headwater.spark.sinks.messages.columns import table_columns
from headwater.spark.sinks.messages.statements import copy_messages
from headwater.spark.sinks.postgres.copy_text import copy_text
from headwater.spark.sinks.postgres.positions import check_origin, hold
from headwater.spark.sinks.postgres.session import Address, Session, kept_session, patiently
from headwater.spark.sinks.postgres.statements import Reached, save_positions
from headwater.spark.sinks.postgres.task import outcome
from headwater.spark.sinks.sink import Written
from headwater.spark.sources.outbox.messages import unpack_messages

# What stands where positions have the schema of a table: they are of a topic.
_SCHEMA: Final = "topic"
# A partition is a lane, and their number may grow.
_LANES: Final = 1


@dataclass(frozen=True, slots=True)
class InsertTask:
    """Writes one partition of a batch, in its order."""

    address: Address
    table: str
    topic: str
    epoch: int
    shape: Shape
    lineage: Lineage

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield outcome(lambda: self._write(batches), [], is_load=False)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        session = kept_session(self.address.url)
        return sum((self._insert(session, rows) for rows in self._messages(batches) if rows.num_rows), Written())

    def _messages(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            match self.shape:
                case Shape.PACKED:
                    yield from (unpack_messages(packed.as_buffer()) for packed in batch["frame"])
                case Shape.MESSAGE:
                    yield batch
                case _:
                    raise SinkError(self.address.sink, f"it takes messages of a topic, not changes of shape {self.shape}")

    def _insert(self, session: Session, rows: pa.RecordBatch) -> Written:
        def attempt() -> Written:
            with session.connection.transaction():
                written = self._insert_unknown(session.connection, rows)
                failpoints.hit("postgres_sink.applied")
            failpoints.hit("postgres_sink.committed")
            return written

        return patiently(self.address, session, attempt)

    def _insert_unknown(self, connection: Connection, rows: pa.RecordBatch) -> Written:
        """Insert what is not in the table yet, and say how far that is."""
        partitions, offsets = rows["ordinal"].to_numpy(), rows["commit_lsn"].to_numpy()
        present = np.unique(partitions).tolist()
        locks = [f"partition {partition}" for partition in present]
        known = hold(connection, self.address, self.epoch, locks, [(_SCHEMA, self.topic)])
        check_origin(self.address, known, [self.lineage])
        reached = {one.lane: int(one.commit_lsn) for one in known}
        starts = np.zeros(max(present) + 1, np.int64)
        starts[list(present)] = [reached.get(partition, 0) for partition in present]
        wanted = rows.filter(pa.array(offsets >= starts[partitions]))
        if wanted.num_rows:
            with connection.cursor() as cursor, cursor.copy(copy_messages(self.table).query) as copy:
                for piece in copy_text(table_columns(wanted)):
                    copy.write(piece)
            for partition in present:
                self._move_on(connection, partition, int(offsets[partitions == partition].max()) + 1)
        return Written(wanted.num_rows, rows.num_rows - wanted.num_rows)

    def _move_on(self, connection: Connection, partition: int, following: int) -> None:
        address = self.address
        reached = Reached(_SCHEMA, self.topic, _LANES, partition, self.lineage.system_identifier, None)
        execute_sync(connection, save_positions(address.pipeline, address.sink, [reached], Position(Lsn(following), 0)))
