"""Topics as sinks, for changes of tables."""

from headwater.spark.sinks.topic.sink import TopicSink

__all__ = ["TopicSink"]
