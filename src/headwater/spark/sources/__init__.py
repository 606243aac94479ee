"""What Spark can read: the data sources that `register` makes known to a session."""

from pyspark.sql import SparkSession

from headwater.spark.sources.changes import ChangesDataSource
from headwater.spark.sources.creek import CreekDataSource
from headwater.spark.sources.outbox import OutboxDataSource
from headwater.spark.sources.topic import TopicDataSource

__all__ = ["ChangesDataSource", "CreekDataSource", "OutboxDataSource", "TopicDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make our sources known to a session: `headwater.changes`, `.creek`, `.outbox` and `.topic`."""
    spark.dataSource.register(ChangesDataSource)
    spark.dataSource.register(CreekDataSource)
    spark.dataSource.register(OutboxDataSource)
    spark.dataSource.register(TopicDataSource)
