"""What Spark can read: the data sources that `register` makes known to a session."""

from pyspark.sql import SparkSession

from headwater.spark.sources.changes import ChangesDataSource
from headwater.spark.sources.creek import CreekDataSource

__all__ = ["ChangesDataSource", "CreekDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make our sources known to a session: `spark.readStream.format("headwater.changes")`, or `headwater.creek`."""
    spark.dataSource.register(ChangesDataSource)
    spark.dataSource.register(CreekDataSource)
