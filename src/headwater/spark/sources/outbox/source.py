"""The source `headwater.outbox`: a table that applications insert messages into, through a logical replication slot.

As with `headwater.changes`, the slot is read in Spark's planner process, and tasks decode what falls to them. When the slot
is new, be it the first or one that took the place of a lost one, the table is read first, as far as it was not delivered.
The names of the methods are Spark's.
"""

from collections.abc import Iterator
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater.errors import ConnectionLost, SettingsError, SourceError
from headwater.postgres.connect import describe
from headwater.spark.frame import Frame, unpack
from headwater.spark.shape import MESSAGES, WIRE, Shape
from headwater.spark.sources.adbc import ReadFailed, close_kept, rows_at
from headwater.spark.sources.outbox.messages import of_frame, of_rows, pack_messages
from headwater.spark.sources.outbox.offset import OutboxOffset
from headwater.spark.sources.outbox.options import OutboxOptions, parse_options
from headwater.spark.sources.outbox.planner import Planner, StreamPartition
from headwater.spark.sources.outbox.recovery import TablePartition

NAME: Final = "headwater.outbox"

_WIRE_SCHEMA: Final = pa.schema([("lane", pa.int32()), ("changes", pa.int64()), ("frame", pa.binary())])


class OutboxDataSource(DataSource):
    """Registers with a session as `headwater.outbox`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return WIRE if parse_options(self.options).shape is Shape.PACKED else MESSAGES

    def reader(self, schema: StructType) -> Any:
        raise SettingsError(
            "`headwater.outbox` is a stream: use `readStream`, with `trigger(availableNow=True)` to end where it is now"
        )

    def streamReader(self, schema: StructType) -> "OutboxReader":  # noqa: N802 - Spark's name
        return OutboxReader(parse_options(self.options))


class OutboxReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader. It is also pickled to tasks, where only `read` is called, so it opens nothing before it must."""

    def __init__(self, options: OutboxOptions) -> None:
        self._options = options
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planning(None).initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` is the end of the last one that Spark has committed, so it is confirmed."""
        offset = OutboxOffset.from_json(start)
        following = self._planning(offset).next(offset)
        return start if following is None else following.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Everything that has committed by now is to be delivered, and then the query ends."""
        self._planning(None).end_here()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The lanes of a range; after a restart this is called before anything else."""
        first, last = OutboxOffset.from_json(start), OutboxOffset.from_json(end)
        return self._planning(first).partitions(first, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self._options
        if isinstance(partition, TablePartition):
            lane, found = partition.lane, _read_table(options, partition)
        else:
            frames = cast("StreamPartition", partition)
            lane = frames.lane
            found = (of_frame(cast("Frame", unpack(packed)), options.columns) for packed in frames.frames)
        for messages in found:
            if options.shape is Shape.MESSAGE:
                yield messages
            else:
                columns = [pa.array([lane], pa.int32()), pa.array([messages.num_rows]), pa.array([pack_messages(messages)])]
                yield pa.RecordBatch.from_arrays(columns, schema=_WIRE_SCHEMA)

    def commit(self, end: dict[str, Any]) -> None:
        """Comes a batch late, and never when nothing follows; `latestOffset` confirms instead."""

    def stop(self) -> None:
        """Hang up. Nothing is confirmed here: this also runs when Spark has died in the middle of a batch."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None
        close_kept()

    def _planning(self, start: OutboxOffset | None) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options, start)
        return self._planner


def _read_table(options: OutboxOptions, partition: TablePartition) -> Iterator[pa.RecordBatch]:
    first = 0
    try:
        for rows in rows_at(options.url, None, partition.query):
            if rows.num_rows:
                yield of_rows(rows, options.columns, partition.payload_type, first)
                first += rows.num_rows
    except ReadFailed as exc:
        said = f"reading {options.table} from PostgreSQL at {describe(options.url)} failed: {exc}"
        raise (ConnectionLost(said) if exc.is_passing else SourceError(said)) from exc
