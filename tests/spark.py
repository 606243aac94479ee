"""Spark for the tests: a session that starts quickly, on a Java found as the product finds it.

Starting Spark is mostly loading classes. The first run of a machine leaves an archive of them, which halves the time of
later ones; it is kept outside of the repository, one for each Java and PySpark, and passed over when it does not fit.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from headwater.embedded import resolve_java, state_directory
from headwater.embedded.directory import make_directory
from headwater.spark.session import build_session, end_session

# Good for a start, not for throughput.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
# Writing the archive takes some 10 s; whoever has waited that long need not wait for ever.
_ARCHIVE_PATIENCE = timedelta(seconds=120)


def java_home() -> Path:
    return resolve_java(os.environ, state_directory())


def quick_settings(java: Path) -> Mapping[str, str]:
    """Settings of a session that starts quickly, also in a process of its own."""
    archive = _archive(java)
    shared = f"{_QUICK} -XX:SharedArchiveFile={archive}" if archive.exists() else _QUICK
    return {"spark.driver.extraJavaOptions": shared, "spark.driver.memory": "1g"}


@contextmanager
def quick_session() -> Iterator[SparkSession]:
    """The session that the tests of a process share; the first one on a machine makes the archive when it ends."""
    java = java_home()
    archive = _archive(java)
    settings, partial = dict(quick_settings(java)), archive.with_suffix(f".{os.getpid()}")
    makes_archive = not archive.exists() and _has_base_archive(java)
    if makes_archive:
        settings["spark.driver.extraJavaOptions"] = f"{_QUICK} -XX:ArchiveClassesAtExit={partial}"
    session = build_session("tests", master="local[2]", settings=settings, java_home=java)
    yield session
    if not makes_archive:
        session.stop()
        return
    end_session(session, patience=_ARCHIVE_PATIENCE)
    if partial.exists():
        partial.replace(archive)


def _archive(java: Path) -> Path:
    release = java / "release"
    facts = f"{java} {release.read_text() if release.exists() else ''} {pyspark.__version__} {pyspark.__file__}"
    # A directory that only we can write to: Java runs what is in the archive.
    place = make_directory(Path("/var/tmp") / f"headwater-spark-{os.geteuid()}")
    return place / f"{sha256(facts.encode()).hexdigest()[:16]}.jsa"


def _has_base_archive(java: Path) -> bool:
    """Whether Java has the archive that ours would build on; that of the wheel has none."""
    return (java / "lib" / "server" / "classes.jsa").exists()
