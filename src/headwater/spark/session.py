"""A Spark session with the settings that were measured to matter, and the user's own on top of them."""

import logging
import os
import shlex
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from subprocess import TimeoutExpired
from types import FrameType, MappingProxyType
from typing import Final

import pyspark
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from headwater.errors import SettingsError
from headwater.spark.sentence import first_sentence

_log = logging.getLogger(__name__)

# Spark's defaults cost about 200 ms a batch, these about 60: its tasks talk to Python through Unix sockets, and its
# checkpoint needs no process per file.
_MEASURED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.python.unix.domain.socket.enabled": "true",
        # Changes pass through Java, and little stays there: with Spark's 1g it would grow to 1.5 GB for nothing.
        "spark.driver.memory": "640m",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "headwater.python_daemon",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
        # A frame of changes is one row: Python decodes one while the next is on its way, instead of waiting for all of them.
        "spark.sql.execution.arrow.maxBytesPerBatch": "1048576",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "500",
        "spark.sql.streaming.numRecentProgressUpdates": "20",
        # Two copies of a task would write to a sink twice at a time.
        "spark.speculation": "false",
    }
)
# On one machine nobody else has to reach the driver.
_LOOPBACK: Final = MappingProxyType({"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"})
_REFUSED: Final = MappingProxyType(
    {
        "spark.speculation": "two copies of a task would write to a sink at a time",
    }
)


# Spark looks through the text of a failed Python call with an expression that recurses by the character: a long one ends
# the thread of the query with an overflow of Java's default stack, and a page of it on the terminal, instead of the error.
_DEEP_STACKS: Final = "-Xss16m"
# Java passes bytes on, and is seldom busy with anything else: in its first minutes most of its time went into compiling at
# length what is run a few thousand times. That is for what is run ten times as often; and a heap of this size has no use for
# collectors with threads of their own. Together they halve what Java takes for a batch.
_MODEST_JAVA: Final = (
    "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
# Long enough for Java to remove its files, and in tests to write an archive of its classes.
_JAVA_PATIENCE: Final = timedelta(seconds=20)
# They print every exception that PySpark raises, at length, whether or not it is caught.
_REPEATING_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
# A JAVA_HOME whose `java` leaves out the one argument that makes every start print a warning.
_QUIET_JAVA: Final = Path(str(files(__package__).joinpath("java")))


def build_session(
    name: str, *, master: str = "local[*]", settings: Mapping[str, str] | None = None, java_home: Path | None = None
) -> SparkSession:
    """The session of this process; `settings` are `spark.*` and win over ours.

    `java_home` is the Java to start Spark with, if it is not to be found by `JAVA_HOME` or `PATH`. Raises SettingsError if
    Spark does not start.
    """
    chosen = merge(master, settings or {})
    # Tasks have to run on the Python, and see the packages, that the driver has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    _quieten()
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        with (
            _quiet_java(java_home, needs_archive=not finds_pyspark(master, chosen)),
            _interrupt_deferred() as is_interrupted,
        ):
            session = builder.getOrCreate()
    except Py4JJavaError as exc:
        # Behind the call that failed come the class and the message of Java's exception, then its stack.
        said = str(exc).partition("\n: ")[2].partition(": ")[2]
        raise SettingsError(f"Spark does not start: {first_sentence(said)}; correct its settings") from exc
    except PySparkRuntimeError as exc:
        raise SettingsError(
            "Spark's Java has ended before it was ready, and says above why; correct Spark's master and settings"
        ) from exc
    if is_interrupted():
        end_session(session)
        raise KeyboardInterrupt
    return session


def merge(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Our settings with the user's on top; raises SettingsError for those that would lose or repeat changes."""
    for key, reason in _REFUSED.items():
        if settings.get(key, "false").strip().lower() != "false":
            raise SettingsError(f"{key} cannot be switched on: {reason}; leave it out")
    for key in settings:
        if not key.startswith("spark."):
            raise SettingsError(f"{key!r} is no setting of Spark; those begin with `spark.`")
    ours = {**_MEASURED, **(_LOOPBACK if master.startswith("local") else {})}
    chosen = {**ours, **settings}
    java_options = chosen.get("spark.driver.extraJavaOptions", "")
    if "log4j2.configurationFile" not in java_options:
        quiet = shlex.quote(f"-Dlog4j2.configurationFile={files(__package__).joinpath('log4j2.properties')}")
        java_options = f"{quiet} {java_options}".strip()
    if "spark.driver.memory" not in settings and "-XX:" not in java_options:
        java_options = f"{_MODEST_JAVA} {java_options}"
    if "-Xss" not in java_options:
        java_options = f"{_DEEP_STACKS} {java_options}"
    chosen["spark.driver.extraJavaOptions"] = java_options
    return chosen


def finds_pyspark(master: str, settings: Mapping[str, str]) -> bool:
    """Whether Spark's Python processes find PySpark where this one did, and not only in the archive of SPARK_HOME."""
    is_local = master == "local" or master.startswith("local[")
    is_same_python = os.environ.get("PYSPARK_PYTHON") == sys.executable and "spark.pyspark.python" not in settings
    is_installed = Path(pyspark.__file__).is_relative_to(sysconfig.get_path("purelib"))
    return is_local and is_same_python and is_installed and "SPARK_HOME" not in os.environ


def end_session(spark: SparkSession, *, patience: timedelta = _JAVA_PATIENCE) -> None:
    """End a session and Spark's Java with it, as the end of this process would, and wait for that.

    Java removes its files last of all. It may be gone already, by the same signal that stops us.
    """
    try:
        spark.stop()
    except (Py4JError, OSError) as exc:
        _log.debug("Java has ended before us", exc_info=exc)
    # PySpark ends it when the interpreter exits, and has no call for it.
    gateway = SparkContext._gateway
    if gateway is None or gateway.proc is None:
        return
    _hang_up(gateway)
    gateway.shutdown()
    gateway.proc.stdin.close()
    with suppress(TimeoutExpired):
        gateway.proc.wait(patience.total_seconds())
    SparkContext._gateway = SparkContext._jvm = None


def _hang_up(gateway: JavaGateway) -> None:
    """End the connections on which threads of this process wait for Java to call.

    py4j waits for such a thread before it closes the connection, and the thread waits for Java. If Java does not learn that
    its gateway is to be shut down, neither wait ends.
    """
    server = gateway.get_callback_server()
    if server is None:
        return
    with server.lock:
        # From now on none is added.
        server.is_shutdown = True
        connections = list(server.connections)
    for connection in connections:
        # A thread that ends at the same moment has closed it.
        with suppress(AttributeError, OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)


def _quieten() -> None:
    """Keep what PySpark logs in this process to what somebody has to know."""
    for repeating in _REPEATING_LOGGERS:
        PySparkLogger.getLogger(repeating).setLevel(logging.CRITICAL)
    # It tells of every call from Java to Python, and of every exception in one, which Spark raises again.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


@contextmanager
def _interrupt_deferred() -> Iterator[Callable[[], bool]]:
    """Defer a first Ctrl-C until Spark has started; the function that it gives tells whether one came.

    In the middle of a start PySpark would leave Java behind, which ignores the signal and waits for a caller for ever. A
    second Ctrl-C takes that risk. A handler of the caller's own, which raises nothing, needs no deferral.
    """
    is_interrupted = False

    def defer(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            signal.default_int_handler(number, frame)
        is_interrupted = True

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: False
        return
    signal.signal(signal.SIGINT, defer)
    try:
        yield lambda: is_interrupted
    finally:
        # PySpark has one of its own once it has started, which stays.
        if signal.getsignal(signal.SIGINT) is defer:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _quiet_java(java_home: Path | None, *, needs_archive: bool) -> Iterator[None]:
    """Within it, whoever looks for Java by JAVA_HOME finds ours, which passes on to the real one.

    Unless `needs_archive`, Spark's Python processes load the installed PySpark. Spark would have them load it from an
    archive, which holds sources only: each process would compile them, which is a third of the time that its start takes.
    """
    before = os.environ.get("JAVA_HOME")
    real = str(java_home) if java_home is not None else before
    if real is not None:
        os.environ["HEADWATER_JAVA_HOME"] = real
    if not needs_archive:
        os.environ["HEADWATER_INSTALLED_PYSPARK"] = "1"
    # An installer that made a plain file of the program costs no more than the silence.
    quiet = os.access(_QUIET_JAVA / "bin" / "java", os.X_OK)
    if quiet or real is not None:
        os.environ["JAVA_HOME"] = str(_QUIET_JAVA) if quiet else str(real)
    try:
        yield
    finally:
        os.environ.pop("HEADWATER_JAVA_HOME", None)
        os.environ.pop("HEADWATER_INSTALLED_PYSPARK", None)
        os.environ.pop("JAVA_HOME", None)
        if before is not None:
            os.environ["JAVA_HOME"] = before
