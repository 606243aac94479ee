"""Whether there is a Spark, and a Java to run it."""

from collections.abc import Iterator
from importlib.metadata import version

from headwater.cli.check.finding import Finding, error, ok, refused
from headwater.cli.config import environment
from headwater.cli.pipeline import has_spark
from headwater.embedded import resolve_java, state_directory
from headwater.errors import HeadwaterError


def check_spark() -> Iterator[Finding]:
    if not has_spark():
        yield error("Spark", "PySpark is not installed", "run `pip install 'headwater[spark]'`")
        return
    yield ok("Spark", f"PySpark {version('pyspark')}")
    try:
        yield ok("Java", f"in {resolve_java(environment(), state_directory())}")
    except HeadwaterError as exc:
        yield refused("Java", exc)
