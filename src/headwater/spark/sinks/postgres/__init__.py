"""The PostgreSQL sink: changes compacted by key and merged into tables of another database, exactly once."""

from headwater.spark.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
