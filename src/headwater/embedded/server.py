"""The life of an embedded server, whatever it serves: claim a directory, start on a free port, wait, stop, clean up.

What comes in is a frozen `ServerSettings`; what goes out is a `url` that holds as long as the server runs. A configured
URL always wins: `url_or_embedded` starts nothing when there is one.
"""

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from headwater.embedded.claim import Claim, claim_directory
from headwater.embedded.directory import state_directory
from headwater.embedded.process import Command, Process, free_port, spawn, wait_until
from headwater.errors import HeadwaterError, SettingsError

# Enough that only a machine without free ports can use them up.
_PORT_ATTEMPTS = 10
_LOG_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What every embedded server is told. Without a `directory` it is temporary: all it holds goes when it stops."""

    directory: Path | None = None
    # Lists this user's servers and holds what they share; not meant to be changed but by tests.
    root: Path = field(default_factory=state_directory)
    # A server that was killed replays its log first.
    start_timeout: timedelta = timedelta(seconds=60)
    # An orderly stop waits for every reader to have received everything; one that reads no more must not hold it up.
    stop_timeout: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        if self.directory is not None and not self.directory.is_absolute():
            raise SettingsError(f"the directory of an embedded server must be absolute, not {self.directory}")
        if min(self.start_timeout, self.stop_timeout) <= timedelta(0):
            raise SettingsError("start_timeout and stop_timeout of an embedded server must be more than 0 s")


class EmbeddedServer(ABC):
    """A private server on 127.0.0.1, running between `start` and `stop` or inside a `with` block.

    Nothing happens before `start`. The port stays the same when the server is started again after `kill` or by
    `restart`, unless somebody else took it meanwhile.
    """

    kind: ClassVar[str]
    failure: ClassVar[type[HeadwaterError]] = HeadwaterError

    def __init__(self, settings: ServerSettings) -> None:
        self._common = settings
        self._claim: Claim | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._port: int | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where to connect, with the password in it."""

    @property
    def port(self) -> int:
        if self._port is None:
            raise HeadwaterError(f"the embedded {self.kind} server has not been started")
        return self._port

    @property
    def pid(self) -> int:
        if self._child is None:
            raise HeadwaterError(f"the embedded {self.kind} server is not running")
        return self._child.pid

    @property
    def directory(self) -> Path:
        """Where the server keeps its files and its log, while it is ours."""
        if self._claim is None:
            raise HeadwaterError(f"the embedded {self.kind} server has not been started")
        return self._claim.directory

    def start(self) -> Self:
        """Return once the server takes connections; also brings back one that was killed."""
        if self._child is not None and self._child.poll() is None:
            return self
        if self._claim is None:
            self._claim = claim_directory(self._common.root, self._common.directory, self.kind)
        try:
            self._prepare(self._claim)
            self._launch(self._claim)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut down in order and give the directory back; at once when interrupted while waiting."""
        if self._claim is None:
            return
        try:
            self._end(self._claim)
        except BaseException:
            self.kill()
            raise
        finally:
            self._claim.release()
            self._claim = None

    def restart(self) -> None:
        """Stop and start again on the same directory."""
        if self._claim is not None:
            self._end(self._claim)
        self.start()

    def kill(self) -> None:
        """End the server and all its children without warning, as a crash would; `start` brings it back."""
        if self._claim is None:
            return
        process = Process.read(self._claim.record)
        if process is not None:
            process.kill()
        self._end(self._claim)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'stopped' if self._child is None else f'on port {self._port}'}>"

    @abstractmethod
    def _prepare(self, claim: Claim) -> None:
        """Put everything into the directory that the server needs to start."""

    @abstractmethod
    def _command(self, claim: Claim, port: int) -> Command:
        """The command that serves the directory on the port, in the foreground, logging to its standard error."""

    @abstractmethod
    def _is_ready(self, claim: Claim, pid: int) -> bool:
        """Whether the process says that it takes connections."""

    def _launch(self, claim: Claim) -> None:
        deadline = time.monotonic() + self._common.start_timeout.total_seconds()
        for _ in range(_PORT_ATTEMPTS):
            port = self._port or free_port()
            if self._try_port(claim, port, deadline):
                self._port = port
                return
            self._port = None
        raise self._failed(claim, f"found {_PORT_ATTEMPTS} ports taken, one after the other")

    def _try_port(self, claim: Claim, port: int, deadline: float) -> bool:
        """Whether the server came up; False when somebody else was quicker to take the port."""
        command = self._command(claim, port)
        with claim.hold() as hold:
            child = self._child = spawn(command, record=claim.record, log=claim.log, hold=hold)
        wait_until(lambda: child.poll() is not None or self._is_ready(claim, child.pid), deadline - time.monotonic())
        if child.poll() is None:
            if self._is_ready(claim, child.pid):
                return True
            raise self._failed(claim, f"is not ready after {self._common.start_timeout.total_seconds():g} s")
        self._child = None
        if "address already in use" in claim.log.read_text(errors="replace").lower():
            return False
        raise self._failed(claim, f"ended with exit code {child.returncode}")

    def _end(self, claim: Claim) -> None:
        claim.end_server(self._common.stop_timeout.total_seconds())
        if self._child is not None:
            self._child.wait()
            self._child = None

    def _failed(self, claim: Claim, what: str) -> HeadwaterError:
        lines = claim.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return self.failure(
            "\n".join([f"embedded {self.kind} server in {claim.directory} {what}; its log ends with:", *lines])
        )


@contextmanager
def url_or_embedded(url: str | None, server: EmbeddedServer) -> Iterator[str]:
    """The configured URL if there is one; otherwise that of the server, which runs until the block ends."""
    if url is not None:
        yield url
        return
    with server:
        yield server.url
