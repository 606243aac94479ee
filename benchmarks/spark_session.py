"""A Spark session as `headwater run` makes it, for parts that run queries in the benchmark's own process."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from pyspark.sql import SparkSession

from headwater.embedded import resolve_java, state_directory
from headwater.spark.session import build_session

# As many tasks at a time as the bars are defined for.
MASTER = "local[2]"


@contextmanager
def spark_session(settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
    """One session for all turns of a part: what Java compiles in one turn serves the next."""
    java = resolve_java(os.environ, state_directory())
    # Rows are counted by progress, so that of all batches is kept.
    kept = {"spark.sql.streaming.numRecentProgressUpdates": "10000"}
    session = build_session("benchmark", master=MASTER, settings={**kept, **settings}, java_home=java)
    try:
        yield session
    finally:
        session.stop()
