"""Creek's messages on NATS JetStream as a source of Spark's."""

from headwater.spark.sources.creek.source import CreekDataSource, CreekReader

__all__ = ["CreekDataSource", "CreekReader"]
