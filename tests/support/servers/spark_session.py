"""Spark for the tests: a session that starts quickly, and what the commands of stories share with it."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from headwater.spark.session import build_session, end_session
from tests.support.servers.forked_python import forked_python
from tests.support.servers.quick_java import ensure_archive
from tests.support.waiting import eventually

# More than the product asks for: the session runs the queries of hundreds of tests.
_HEAP = "1g"
# The Python of the session that runs in this process.
_pythons: list[Path] = []


def story_environment() -> Mapping[str, str]:
    """For a command that a story starts: while the tests' session runs, Spark has that session's Python there, too.

    The product would have a Python of its user load the archive of PySpark, which is of use only if that has none.
    """
    return {"PYSPARK_PYTHON": str(_pythons[-1]), "HEADWATER_INSTALLED_PYSPARK": "1"} if _pythons else {}


@contextmanager
def quick_session() -> Iterator[SparkSession]:
    """The session that the tests of a process share, on the Java of JAVA_HOME."""
    ensure_archive()
    with forked_python() as python:
        session = build_session("tests", master="local[2]", settings={"spark.driver.memory": _HEAP})
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
