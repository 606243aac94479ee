"""Spark for the tests: a session that starts quickly, on a Java found as the product finds it.

Starting Spark is mostly loading classes: 9 CPU seconds, and 4 with an archive of them. `make test` or the first test that
needs Spark has the archive made, by a process that runs a small stream; others wait for it. It is kept outside of the
repository, one for each Java and PySpark, and passed over when it does not fit.
"""

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path

import pyspark
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from headwater.embedded import resolve_java, state_directory
from headwater.embedded.directory import make_directory
from headwater.spark.session import build_session, end_session
from headwater.spark.warm_up import warm_up
from tests.support.servers.forked_python import forked_python
from tests.support.waiting import eventually

# Good for a start, not for throughput.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
_HEAP = "1g"
JAVA_FILES = "java"
# To write the archive takes Java some 10 s.
_ARCHIVE_TIMEOUT = timedelta(seconds=180)
# The Python of the session that runs in this process.
_pythons: list[Path] = []


def java_home() -> Path:
    return resolve_java(os.environ, state_directory())


def quick_settings(java: Path) -> Mapping[str, str]:
    """Settings of a session that starts quickly, also in a process of its own.

    Java keeps files as long as it lives, and leaves them when it is killed: they go to a folder that ends with the tests.
    """
    archive, files = _class_archive(java), Path(tempfile.gettempdir(), JAVA_FILES)
    files.mkdir(exist_ok=True)
    options = f"{_QUICK} -Djava.io.tmpdir={files}"
    if archive is not None:
        options += f" -XX:SharedArchiveFile={archive}"
    return {"spark.driver.extraJavaOptions": options, "spark.driver.memory": _HEAP}


def story_environment() -> Mapping[str, str]:
    """For a command that a story starts: while the tests' session runs, Spark has that session's Python there, too.

    The product would have a Python of its user load the archive of PySpark, which is of use only if that has none.
    """
    return {"PYSPARK_PYTHON": str(_pythons[-1]), "HEADWATER_INSTALLED_PYSPARK": "1"} if _pythons else {}


@contextmanager
def quick_session() -> Iterator[SparkSession]:
    """The session that the tests of a process share."""
    java = java_home()
    with forked_python() as python:
        session = build_session("tests", master="local[2]", settings=quick_settings(java), java_home=java)
        session.sparkContext.pythonExec = str(python)
        _pythons.append(python)
        # By which Java calls `foreachBatch`: else the first test that has one would seem to leave its port behind.
        gateway = session.sparkContext._gateway
        assert gateway is not None
        ensure_callback_server_started(gateway)
        # Its port is bound by then; a thread has it listen, a moment later on a busy machine.
        listener = gateway._callback_server.server_socket
        eventually(lambda: listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        try:
            yield session
        finally:
            _pythons.remove(python)
            end_session(session)


@cache
def _class_archive(java: Path) -> Path | None:
    """The archive of classes, made if it is missing; None if this Java cannot make one."""
    # That of the wheel has no archive of its own, which ours would build on.
    if not (java / "lib" / "server" / "classes.jsa").exists():
        return None
    release = java / "release"
    facts = f"{java} {release.read_text() if release.exists() else ''} {pyspark.__version__} {pyspark.__file__}"
    # A directory that only we can write to: Java runs what is in the archive.
    folder = make_directory(Path("/var/tmp") / f"headwater-spark-{os.geteuid()}")
    archive = folder / f"{sha256(facts.encode()).hexdigest()[:16]}.jsa"
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            # Of processes that were ended while they wrote it.
            for partial in folder.glob(f"{archive.stem}.[0-9]*"):
                partial.unlink()
            command = [sys.executable, "-m", "tests.support.servers.spark_session", str(archive)]
            subprocess.run(command, check=True, cwd=Path(__file__).parents[3], timeout=2 * _ARCHIVE_TIMEOUT.total_seconds())
    return archive


def _make_archive(archive: Path) -> None:
    """Run a stream in a Java that writes down at its end which classes that took."""
    java, partial = java_home(), archive.with_suffix(f".{os.getpid()}")
    options = f"{_QUICK} -XX:ArchiveClassesAtExit={partial}"
    settings = {"spark.driver.extraJavaOptions": options, "spark.driver.memory": _HEAP}
    session = build_session("class archive", master="local[2]", settings=settings, java_home=java)
    warm_up(session)
    end_session(session, patience=_ARCHIVE_TIMEOUT)
    if partial.exists():
        partial.replace(archive)


if __name__ == "__main__":
    # By `scripts/prepare-tests` without an archive to write: the one that the tests want is made, if it is missing.
    if len(sys.argv) == 1:
        _class_archive(java_home())
    else:
        _make_archive(Path(sys.argv[1]))
