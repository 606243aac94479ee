"""The session that the tests of a process share, for commands of the program, and the log of planners that it starts."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from headwater.spark.session import build_session


@contextmanager
def commands_on(spark: SparkSession) -> Iterator[None]:
    """Within it, a command that would start Spark gets the session, and leaves it running at its end."""

    signature = inspect.signature(build_session)

    def shared(*arguments: object, **settings: object) -> SparkSession:
        # A call that the function itself would refuse is refused here, too.
        signature.bind(*arguments, **settings)
        return spark

    def keep(*_arguments: object) -> None:
        """Leave the session to the other tests."""

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headwater.spark.session.build_session", shared)
        patched.setattr("headwater.spark.build_session", shared)
        patched.setattr("headwater.spark.session.end_session", keep)
        patched.setattr("headwater.cli.check.pipeline.build_session", shared)
        patched.setattr(SparkSession, "stop", keep)
        system = spark._jvm.java.lang.System  # type: ignore[union-attr] # a session that runs has a Java
        errors = system.err
        try:
            yield
        finally:
            # The demo silences it for the rest of its Spark's life.
            system.setErr(errors)


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
