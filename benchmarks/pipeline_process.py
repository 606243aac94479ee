"""`headwater run` in a process of its own, on a pipeline file made for it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.spark_session import MASTER

SOURCE_VARIABLE, TARGET_VARIABLE = "BENCHMARK_SOURCE_URL", "BENCHMARK_TARGET_URL"
NOOP = 'type = "noop"'
POSTGRES = f'type = "postgres"\nurl = "${{{TARGET_VARIABLE}}}"'

_LAST_LINES = 20
_STOP_SECONDS = 60


def pipeline_file(name: str, table: str, sink: str) -> str:
    """A file for one table; slot and publication are called as the pipeline is."""
    return f"""\
name = "{name}"

[source]
url = "${{{SOURCE_VARIABLE}}}"
tables = ["{table}"]

[[sinks]]
{sink}

[spark]
master = "{MASTER}"
"""


class PipelineProcess:
    """A pipeline that runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process, self._log = process, log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def require_alive(self) -> None:
        if self.is_over:
            raise RuntimeError(f"`headwater run` ended before its time\n{self._last_lines()}")

    def finish(self, seconds: float | None = None) -> None:
        """Wait for its end, which has to be a good one."""
        if self._process.wait(seconds) != 0:
            raise RuntimeError(f"`headwater run` failed with exit code {self._process.returncode}\n{self._last_lines()}")

    def stop(self) -> None:
        """Have it end after the batch that it is at."""
        self._process.send_signal(signal.SIGTERM)
        self.finish(_STOP_SECONDS)

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:])


@contextmanager
def running(directory: Path, content: str, urls: Mapping[str, str], *options: str) -> Iterator[PipelineProcess]:
    """A pipeline in a process of its own, which is killed at the end if it is still there."""
    file, log = directory / "headwater.toml", directory / "run.log"
    file.write_text(content, encoding="utf-8")
    command = [sys.executable, "-m", "headwater.cli", "run", "--file", str(file), *options]
    # The URLs have passwords, so they go by the environment: a command line can be read by everybody on the machine.
    environment = {**os.environ, **urls}
    with log.open("wb") as written, subprocess.Popen(command, stdout=written, stderr=written, env=environment) as process:
        try:
            yield PipelineProcess(process, log)
        finally:
            process.kill()
