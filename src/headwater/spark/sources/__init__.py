"""The data sources that `register` makes known to a session of Spark's.

Spark starts several Python processes for a query, each of which loads the module of its source and this package: they load
no other source.
"""

from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make our sources known to a session: `headwater.changes`, `.creek`, `.outbox` and `.topic`."""
    from headwater.spark.sources.changes import ChangesDataSource
    from headwater.spark.sources.creek import CreekDataSource
    from headwater.spark.sources.outbox import OutboxDataSource
    from headwater.spark.sources.topic import TopicDataSource

    for source in (ChangesDataSource, CreekDataSource, OutboxDataSource, TopicDataSource):
        spark.dataSource.register(source)
