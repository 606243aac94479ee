"""Commands of the program on the session that the tests of a process share, where a start of Spark is not the subject."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession


@contextmanager
def commands_on(spark: SparkSession) -> Iterator[None]:
    """Within it, a command that would start Spark gets the session, and leaves it running at its end."""

    def shared(*_arguments: object, **_settings: object) -> SparkSession:
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
