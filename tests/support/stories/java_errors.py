"""The standard error of planners that the tests' Spark session starts: their log, which no fixture of pytest captures."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def planners_heard(spark: SparkSession) -> Iterator[Callable[[], str]]:
    """Collect the log of planners that start within the block; the function that it gives returns what came so far.

    Java copies the standard error of a planner to the stream that is its own standard error when the planner starts.
    """
    java = spark._jvm.java  # type: ignore[union-attr] # a session that runs has a Java
    collected, before = java.io.ByteArrayOutputStream(), java.lang.System.err
    java.lang.System.setErr(java.io.PrintStream(collected, True))
    try:
        yield lambda: str(collected.toString("UTF-8"))
    finally:
        java.lang.System.setErr(before)
