"""A query that does nothing, for a run that stands by: the first query of a session takes Spark far longer than any other.

Java loads its classes, and Python's workers start and load their modules. A run that takes over has no time for that.
"""

import logging
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

_NAME: Final = "headwater.warm_up"
_SCHEMA: Final = "number int"


class _WarmUp(DataSource):
    """A stream of one batch, with a row for each of some tasks."""

    @classmethod
    def name(cls) -> str:
        return _NAME

    def schema(self) -> str:
        return _SCHEMA

    def streamReader(self, schema: StructType) -> "_Reader":  # noqa: N802 - Spark's name
        return _Reader(int(self.options["tasks"]))


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The names of the methods are Spark's."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"batch": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return {"batch": 1}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """There is nothing to prepare."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array([partition.value], pa.int32())], ["number"])


def warm_up(spark: SparkSession) -> None:
    """Run the query; that it fails is of no consequence."""
    spark.dataSource.register(_WarmUp)
    stream = spark.readStream.format(_NAME).option("tasks", str(spark.sparkContext.defaultParallelism)).load()
    with TemporaryDirectory(prefix="headwater-") as directory:
        try:
            writer = stream.writeStream.foreachBatch(_deliver).option("checkpointLocation", directory)
            writer.trigger(availableNow=True).start().awaitTermination()
        except PySparkException as exc:
            _log.debug("Spark could not be warmed up", exc_info=exc)


def _deliver(batch: DataFrame, _number: int) -> None:
    batch.mapInArrow(_pass, _SCHEMA).collect()


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # Loaded here, and kept by the worker: what a sink's task needs, of which most is what all of them do.
    import headwater.spark.sinks.postgres.task  # noqa: F401

    yield from batches
