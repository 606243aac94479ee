"""Fails a test that leaves a process, a listening port, a replication slot or a temporary file behind, in its own teardown.

Things that a fixture of a wider scope has set up stay. The rest is given some seconds to end, since processes and sockets
take a moment; then processes that are left are killed, so that only the test that left them fails. The root logger, which
commands that run in a test's process set up for the standard error of that test, is restored.
"""

import logging
import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.embedded.claim import claim_directory
from headwater.embedded.directory import make_directory
from headwater.embedded.lock import try_lock, unlock
from tests.support.servers.embedded import PLACE_VARIABLE, shared_place, shared_root
from tests.support.servers.quick_java import quick_java

_GRACE_SECONDS = 15.0
_INTERNET = (socket.AF_INET, socket.AF_INET6)
# A flag of the kernel's threads.
_PF_KTHREAD = 0x00200000
# What tests get from pytest, which keeps the last three.
_PYTEST = "pytest-of-"
# In the directory of a worker, which holds it as long as it lives.
_LOCK = "worker.lock"


@contextmanager
def root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers, root.level = handlers, level


@dataclass(slots=True)
class _Found:
    """What is there at a moment: numbers of processes, our listening sockets with their ports, names of files and slots."""

    processes: set[int] = field(default_factory=set)
    sockets: dict[int, int] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    slots: set[str] = field(default_factory=set)

    def beyond(self, *others: "_Found") -> "_Found":
        """Return what is here and in none of the others."""
        return _Found(
            self.processes.difference(*(other.processes for other in others)),
            {inode: port for inode, port in self.sockets.items() if all(inode not in other.sockets for other in others)},
            self.files.difference(*(other.files for other in others)),
            self.slots.difference(*(other.slots for other in others)),
        )

    def add(self, other: "_Found") -> None:
        self.processes |= other.processes
        self.sockets |= other.sockets
        self.files |= other.files
        self.slots |= other.slots


class LeakGuard:
    """A plugin of pytest for one worker. `directory` is where its tests put temporary files, and is gone at its end."""

    def __init__(self, worker: str) -> None:
        _remove_abandoned()
        self.directory = Path(tempfile.mkdtemp(prefix=f"headwater-{worker}-", dir=shared_place()))
        # Held as long as this process lives, and never there without being held.
        try_lock(self.directory / "new.lock")
        (self.directory / "new.lock").rename(self.directory / _LOCK)
        # Servers run as users of their own, who have to pass.
        self.directory.chmod(0o711)
        os.environ["JAVA_HOME"] = str(quick_java(self.directory))
        # What was there when the last test had ended is there before the next one.
        self._before: _Found | None = None
        self._adopted = _Found()
        self._servers: list[Path] = []
        os.environ["TMPDIR"] = os.environ[PLACE_VARIABLE] = str(self.directory)
        tempfile.tempdir = None
        make_directory(shared_root())

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: "pytest.FixtureDef[object]", request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Adopt what a fixture sets up that outlives the test."""
        if fixturedef.scope == "function":
            return (yield)
        before = self._now()
        try:
            result = yield
        finally:
            self._adopted.add(self._now().beyond(before))
        if isinstance(result, EmbeddedPostgres):
            self._servers.append(result.directory)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        if self._before is None:
            self._before = self._now()
        yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        try:
            yield
        finally:
            # Also after a fixture that fails: the next test is not blamed for what this one leaves.
            left = self._left()
        if left:
            pytest.fail(f"left behind: {'; '.join(left)}", pytrace=False)

    def _left(self) -> list[str]:
        """Describe what the test has left; it is there before the next test, which is not blamed for it."""
        before = self._before or _Found()
        deadline = time.monotonic() + _GRACE_SECONDS
        while True:
            now = self._now()
            new = now.beyond(before, self._adopted)
            ours = [pid for pid in new.processes if self._is_ours(pid)]
            left = [
                *(f"process {pid} ({_command(pid)})" for pid in ours),
                *(f"listening port {port}" for port in new.sockets.values()),
                *(f"file {self.directory / name}" for name in new.files),
                *(f"replication slot {name}" for name in new.slots),
            ]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self._before = now
        for pid in ours:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def _now(self) -> _Found:
        processes = {int(name) for name in _names("/proc") if name.isdigit()}
        files = {*_names(self.directory), *_server_directories()}
        return _Found(processes, _own_listeners(), files, set(self._slots()))

    def _slots(self) -> Iterable[str]:
        """List the slots of the servers that stay, without asking the servers after each of thousands of tests."""
        for server in self._servers:
            # The server may have ended with its fixture; a slot that is being created or dropped has a dot in its name.
            with suppress(FileNotFoundError):
                yield from (name for name in _names(server / "data" / "pg_replslot") if "." not in name)

    def _is_ours(self, pid: int) -> bool:
        """Whether a process is of this worker, and not of a server that stays; one that has ended is nobody's."""
        place = os.fsencode(self.directory)
        while Path(f"/proc/{pid}").exists():
            with suppress(FileNotFoundError, ProcessLookupError):
                lineage = list(_lineage(pid))
                if not lineage or not self._adopted.processes.isdisjoint(lineage):
                    return False
                if os.getpid() in lineage:
                    return True
                if _is_kernels(pid):
                    return False
                # One whose parents have died can be known by where it works.
                try:
                    command, environ, same = (_read(pid, name) for name in ("cmdline", "environ", "cmdline"))
                except PermissionError:
                    return False
                if environ or (command and command == same):
                    return place in environ or place in command
            # A parent has just ended, or the process is in the middle of exec and has neither for a moment: look again.
            time.sleep(0.001)
        return False


def _remove_abandoned() -> None:
    """Stop the servers of workers that were killed, and remove their files: nobody else would."""
    for lock in shared_place().glob(f"headwater-*/{_LOCK}"):
        # Another worker may be removing it at the same time, and another user's is not for us.
        with suppress(OSError):
            held = try_lock(lock)
            if held is not None:
                # Whoever claims a directory for a server stops the abandoned ones.
                claim_directory(lock.parent / shared_root().name, None, "abandoned").release()
                shutil.rmtree(lock.parent, ignore_errors=True)
                unlock(held)


def _server_directories() -> Iterable[str]:
    """List the directories of embedded servers, by their paths in that of the worker."""
    servers = shared_root() / "servers"
    with suppress(FileNotFoundError):
        yield from (f"{shared_root().name}/servers/{name}" for name in _names(servers))


def _lineage(pid: int) -> Iterable[int]:
    """A process and its parents, none of it if the process has ended."""
    while pid > 1:
        # Behind the name of the program, which may have spaces and brackets: the state and the parent.
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:2]
        if state == "Z":
            return
        yield pid
        pid = int(parent)


def _is_kernels(pid: int) -> bool:
    # The seventh field behind the name of the program.
    return bool(int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[6]) & _PF_KTHREAD)


def _read(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def _command(pid: int) -> str:
    with suppress(OSError):
        return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")[:200]
    return "ended since"


def _own_listeners() -> dict[int, int]:
    """The ports that this process listens on, by the inodes of their sockets."""
    listening = {}
    for name in _names("/proc/self/fd"):
        with suppress(OSError):
            found = os.stat(int(name))  # noqa: PTH116 - a number, not a path
            if stat.S_ISSOCK(found.st_mode):
                with socket.socket(fileno=os.dup(int(name))) as copy:
                    if copy.family in _INTERNET and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        listening[found.st_ino] = copy.getsockname()[1]
    return listening


def _names(directory: str | Path) -> list[str]:
    # Before and after each of thousands of tests: without an object for each name.
    return [name for name in os.listdir(directory) if not name.startswith(_PYTEST)]  # noqa: PTH208
