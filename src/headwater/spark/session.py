"""A Spark session with the settings that were measured to matter, and the user's own on top of them."""

import os
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark.sql import SparkSession

from headwater.errors import SettingsError

# Spark's defaults cost about 200 ms a batch, these about 60: its tasks talk to Python through Unix sockets, and its
# checkpoint needs no process per file.
_MEASURED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.reuse": "true",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
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
        "spark.sql.streaming.asyncProgressTracking.enabled": "positions would be confirmed before they are committed",
    }
)


def build_session(
    name: str, *, master: str = "local[*]", settings: Mapping[str, str] | None = None, java_home: Path | None = None
) -> SparkSession:
    """The session of this process; `settings` are `spark.*` and win over ours.

    `java_home` is the Java to start Spark with, if it is not to be found by `JAVA_HOME` or `PATH`.
    """
    chosen = merge(master, settings or {})
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
    # Tasks have to run on the Python, and see the packages, that the driver has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def merge(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Our settings with the user's on top; raises SettingsError for those that would lose or repeat changes."""
    for key, reason in _REFUSED.items():
        if settings.get(key, "false").lower() == "true":
            raise SettingsError(f"{key} cannot be switched on: {reason}")
    for key in settings:
        if not key.startswith("spark."):
            raise SettingsError(f"{key!r} is no setting of Spark: those begin with `spark.`")
    logging = f"-Dlog4j2.configurationFile={files(__package__).joinpath('log4j2.properties')}"
    ours = {**_MEASURED, **(_LOOPBACK if master.startswith("local") else {})}
    chosen = {**ours, **settings}
    java_options = chosen.get("spark.driver.extraJavaOptions", "")
    if "log4j2.configurationFile" not in java_options:
        chosen["spark.driver.extraJavaOptions"] = f"{logging} {java_options}".strip()
    return chosen
