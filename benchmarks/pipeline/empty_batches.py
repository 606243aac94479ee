"""The client of the empty micro-batch: a Python source that has something new each time, and it is nothing.

Run by `benchmarks.pipeline` as a process of its own, as a pipeline is; says how long its batches took, in milliseconds.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from benchmarks.spark_session import spark_session


class EmptySource(DataSource):
    """Registers with a session as `empty`."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> str:
        return "number long"

    def streamReader(self, schema: StructType) -> "EmptyReader":  # noqa: N802 - Spark's name
        return EmptyReader(int(self.options["batches"]))


class EmptyReader(DataSourceStreamReader):
    """So many batches, each of one partition without a row; the names are Spark's."""

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"number": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return {"number": min(start["number"] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept that could be forgotten."""


def durations(spark: SparkSession, batches: int) -> list[float]:
    """What the batches of a query took, each."""
    spark.dataSource.register(EmptySource)
    with TemporaryDirectory() as directory:
        writer = spark.readStream.format("empty").option("batches", str(batches)).load().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(Path(directory, "checkpoint"))).start()
        while query.isActive and len(query.recentProgress) < batches:
            time.sleep(0.2)
        # Stopped when there is no batch to be interrupted.
        query.stop()
    return [float(one.durationMs["triggerExecution"]) for one in query.recentProgress[:batches]]


def main(batches: int) -> None:
    with spark_session() as spark:
        found = durations(spark, batches)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
