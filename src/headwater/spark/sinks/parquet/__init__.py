"""Parquet files under a directory: append-only, one folder per table and day, no range written twice."""

from headwater.spark.sinks.parquet.sink import ParquetSink

__all__ = ["ParquetSink"]
