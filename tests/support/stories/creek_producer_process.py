"""`headwater creek produce` as a process, started from Creek's environment alone."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.spark_session import story_environment
from tests.support.waiting import eventually

_COMMAND = (sys.executable, "-m", "headwater.cli", "--log-format", "json", "creek", "produce", "--checkpoint", "checkpoint")


class Producer:
    """The process, started again on request; its output is in `produce.log` of its directory."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory, self._environment = directory, environment
        self._process = self._start()

    @property
    def log(self) -> str:
        return (self._directory / "produce.log").read_text(errors="replace")

    @property
    def failures(self) -> int:
        """How often a query has failed, after which the producer starts another one."""
        return self.log.count("trying again in")

    @property
    def pid(self) -> int:
        return self._process.pid

    def require_life(self) -> None:
        assert self._process.poll() is None, f"the producer has ended with {self._process.returncode}: {self.log[-3000:]}"

    def wait_until(self, probe: Callable[[], object], seconds: float = 90) -> None:
        """Wait for an effect of the producer, as long as it lives."""

        def look() -> bool:
            self.require_life()
            return bool(probe())

        eventually(look, seconds=seconds)

    def kill(self) -> None:
        """SIGKILL, and a new process in its place."""
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def wait_for_kill(self, seconds: float = 120) -> None:
        """Wait until a failpoint has killed the process; `start` starts it again."""
        code = self._process.wait(seconds)
        assert code == -signal.SIGKILL, f"the producer has ended with {code}: {self.log[-3000:]}"

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the process again after `wait_for_kill`, with another environment."""
        self._environment = environment
        self._process = self._start()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "NATS_", "HEADWATER"))}
        with (self._directory / "produce.log").open("ab") as log:
            environment = {**kept, **story_environment(), **self._environment}
            return subprocess.Popen(_COMMAND, cwd=self._directory, stdout=log, stderr=log, env=environment)


@contextmanager
def producing(directory: Path, environment: Mapping[str, str]) -> Iterator[Producer]:
    producer = Producer(directory, environment)
    try:
        yield producer
    finally:
        producer.end()
