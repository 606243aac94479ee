"""The source `headwater.topic`: a topic as a stream of Spark's, or all of it at once.

Spark's planner process looks how far the topic is, and tasks read ranges of it. The names of the methods are Spark's.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater.errors import ConnectionLost, SettingsError, SourceError
from headwater.postgres.connect import describe
from headwater.spark.shape import MESSAGES, TOPIC, WIRE, Shape
from headwater.spark.sources.adbc import ReadFailed, close_kept, rows_at
from headwater.spark.sources.outbox.messages import pack_messages
from headwater.spark.sources.topic.messages import as_messages, as_rows
from headwater.spark.sources.topic.offset import TopicOffset
from headwater.spark.sources.topic.options import TopicOptions, parse_options
from headwater.spark.sources.topic.planner import Planner, RangePartition, expired, plan_all
from headwater.topics.arrow import to_messages

NAME: Final = "headwater.topic"

_WIRE_SCHEMA: Final = pa.schema([("lane", pa.int32()), ("changes", pa.int64()), ("frame", pa.binary())])
_SCHEMAS: Final = {Shape.TABLE: TOPIC, Shape.MESSAGE: MESSAGES, Shape.PACKED: WIRE}


class TopicDataSource(DataSource):
    """Registers with a session as `headwater.topic`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return _SCHEMAS[parse_options(self.options).shape]

    def reader(self, schema: StructType) -> "TopicReader":
        options = parse_options(self.options)
        if options.group is not None:
            raise SettingsError("`read` moves the cursors of no group; leave the option `group` out, or use `readStream`")
        return TopicReader(options)

    def streamReader(self, schema: StructType) -> "TopicStreamReader":  # noqa: N802 - Spark's name
        return TopicStreamReader(parse_options(self.options))


class TopicReader(DataSourceReader):
    """Reads all that there is when the query is planned."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return plan_all(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, Spark starts a task all the same, with a partition of its own.
        return _read(self._options, partition) if isinstance(partition, RangePartition) else iter(())


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader. It is also pickled to tasks, where only `read` is called, so it opens nothing before it must."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planning.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        return ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` is the end of the last one that Spark has committed."""
        following = self._planning.next(TopicOffset.from_json(start))
        return start if following is None else following.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Everything that has committed by now is to be delivered, and then the query ends."""
        self._planning.end_here()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a range; after a restart this is called before anything else."""
        return self._planning.partitions(TopicOffset.from_json(start), TopicOffset.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, cast("RangePartition", partition))

    def commit(self, end: dict[str, Any]) -> None:
        """The group learns of it with the next batch, which is asked for also when there is none."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None
        close_kept()

    @property
    def _planning(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner


def _read(options: TopicOptions, mine: RangePartition) -> Iterator[pa.RecordBatch]:
    """The messages of a range, all of them: raises PositionExpired if some were dropped since it was planned."""
    reached = mine.first
    try:
        for rows in rows_at(options.url, None, mine.query):
            if not rows.num_rows:
                continue
            messages = to_messages(rows)
            first = messages["offset"][0].as_py()
            if first > reached:
                raise expired(options, mine.partition, reached, first)
            wanted = messages.slice(reached - first, min(mine.until - reached, messages.num_rows))
            reached += wanted.num_rows
            if wanted.num_rows:
                yield _shaped(options, mine.partition, wanted)
    except ReadFailed as exc:
        said = f"reading topic {options.topic!r} from PostgreSQL at {describe(options.url)} failed: {exc}"
        raise (ConnectionLost(said) if exc.is_passing else SourceError(said)) from exc
    if reached < mine.until:
        raise expired(options, mine.partition, reached, mine.until)


def _shaped(options: TopicOptions, partition: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    if options.shape is Shape.TABLE:
        return as_rows(options.topic, rows)
    messages = as_messages(options.topic, rows)
    if options.shape is Shape.MESSAGE:
        return messages
    columns = [pa.array([partition], pa.int32()), pa.array([messages.num_rows]), pa.array([pack_messages(messages)])]
    return pa.RecordBatch.from_arrays(columns, schema=_WIRE_SCHEMA)
