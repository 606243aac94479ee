"""The source `headwater.topic`."""

from headwater.spark.sources.topic.source import NAME, TopicDataSource

__all__ = ["NAME", "TopicDataSource"]
