"""What Spark can read: the data sources that `register` makes known to a session."""

from pyspark.sql import SparkSession

from headwater.spark.sources.changes import ChangesDataSource

__all__ = ["ChangesDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `headwater.changes` known to a session: `spark.readStream.format("headwater.changes")`."""
    spark.dataSource.register(ChangesDataSource)
