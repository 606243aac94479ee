"""A Spark cluster on this machine: a master and a worker as processes of their own, started from the installed PySpark."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from headwater.embedded.process import free_port
from tests.support.waiting import eventually

_SPARK = Path(pyspark.__file__).parent
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class Cluster:
    """`url` is the master for a session; `settings` are what a driver of it needs on one machine."""

    url: str
    processes: tuple[psutil.Process, ...]

    @property
    def settings(self) -> Mapping[str, str]:
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
        }

    def executors(self) -> list[int]:
        """The processes that run tasks, each a child of the worker."""
        found = []
        for process in self.processes:
            for child in process.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if _EXECUTOR in child.cmdline():
                        found.append(child.pid)
        return found


@contextmanager
def spark_cluster(directory: Path, cores: int = 2) -> Iterator[Cluster]:
    """A cluster whose worker has an executor for each of its cores; what its processes say is in files of the directory."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start(directory, "master", "deploy.master.Master", "--port", str(port)))
        eventually(lambda: _answers(port), seconds=60)
        room = ("--cores", str(cores), "--memory", f"{cores}g", "--work-dir", str(directory / "work"))
        started.append(_start(directory, "worker", "deploy.worker.Worker", "--port", "0", *room, url))
        eventually(lambda: _is_registered(directory / "worker.log"), seconds=60)
        yield Cluster(url, tuple(psutil.Process(process.pid) for process in started))
    finally:
        _end(started)


def _is_registered(log: Path) -> bool:
    return "Successfully registered with master" in log.read_text(encoding="utf-8")


def _start(directory: Path, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "SPARK_HOME": str(_SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    command = [str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.{main}", "--host", "127.0.0.1", "--webui-port", "0"]
    with (directory / f"{name}.log").open("wb") as log:
        # The script ends by becoming Java, so the process is the one to be killed.
        return subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=subprocess.STDOUT)


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    """End the worker first, which ends its executors; then whatever is left of them."""
    family = [child for process in started for child in _children(process.pid)]
    for process in reversed(started):
        process.send_signal(signal.SIGTERM)
    for process in started:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for child in family:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def _children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
