"""Server processes: start one, tell it apart from any other, wait for it, end it with all its children.

A process is known by boot, number and start time, as `/proc` tells them (proc(5)), and is never signalled by number or
name alone. It writes these down itself before it becomes the server, so that no server is ever without its record.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from types import MappingProxyType
from typing import BinaryIO, Self

from headwater.embedded.account import Account, switch_to

# What a server inherits, whatever the caller's environment: none of its PG* or LD_*, messages in English, one time zone.
ENVIRONMENT: Mapping[str, str] = MappingProxyType({"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"})
# Below Linux's default range for outgoing connections (from 32768), so that none of these takes the port of a server that
# is being restarted.
_PORTS = range(20_000, 32_000)
_PORT_PICKS = 100
# After an immediate shutdown PostgreSQL itself kills, within 5 s, the children that do not end.
_QUIT_SECONDS = 10.0
_POLL_SECONDS = 0.01
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_RECORD_AND_EXEC = (
    f"set -e; IFS= read -r boot <{_BOOT}; IFS= read -r stat </proc/$$/stat; "
    """printf '%s\\n' "$boot" "$stat"; exec "$@" >&2"""
)


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, as whom, and with which environment."""

    arguments: Sequence[str]
    account: Account | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: ENVIRONMENT)


@dataclass(frozen=True, slots=True)
class Process:
    """One process, told apart from any later one with the same number."""

    boot: str
    pid: int
    started_ticks: int

    @classmethod
    def parse(cls, record: str) -> Self | None:
        """Read the boot id and the line of `/proc/<pid>/stat` under it; None when they are not complete."""
        boot, _, line = record.partition("\n")
        try:
            pid, _, _, started_ticks = _parse_stat(line)
        except (IndexError, ValueError):
            return None
        return cls(boot, pid, started_ticks)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        try:
            return cls.parse(path.read_text(errors="replace"))
        except OSError:
            return None

    def is_running(self) -> bool:
        """Whether it lives; one that has ended and waits to be collected by its parent does not."""
        try:
            _, state, _, started_ticks = _parse_stat(Path(f"/proc/{self.pid}/stat").read_text(errors="replace"))
        except OSError:
            return False
        return state not in "ZX" and started_ticks == self.started_ticks and self.boot == _boot()

    def signal(self, number: signal.Signals) -> None:
        if self.is_running():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self, grace_seconds: float) -> None:
        """Shut it down in order; when that takes longer than the grace, at once; when it hangs, by force.

        Children that it leaves behind, such as a program that a `copy` runs, are killed: nothing else would end them.
        """
        children = self._descendants()
        for number, seconds in ((signal.SIGINT, grace_seconds), (signal.SIGQUIT, _QUIT_SECONDS)):
            self.signal(number)
            if wait_until(lambda: not self.is_running(), seconds):
                break
        else:
            self.kill()
        for child in children:
            child.signal(signal.SIGKILL)

    def kill(self) -> None:
        """Kill it and its descendants, wherever they have put themselves: PostgreSQL's are no members of its group."""
        self.signal(signal.SIGSTOP)
        for victim in [self, *self._descendants()]:
            victim.signal(signal.SIGKILL)
        wait_until(lambda: not self.is_running(), _QUIT_SECONDS)

    def _descendants(self) -> list[Self]:
        """All below it; none when it has ended, since another process may have its number, and children, by now."""
        children: dict[int, list[Self]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                pid, _, parent, started_ticks = _parse_stat(path.read_text(errors="replace"))
                children.setdefault(parent, []).append(type(self)(self.boot, pid, started_ticks))
        found = list(children.get(self.pid, []))
        for process in found:
            found.extend(children.get(process.pid, []))
        return found if self.is_running() else []


def spawn(command: Command, *, record: Path, log: Path, hold: int) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, so that a Ctrl-C in the terminal reaches us and not it.

    Its `Process` goes to `record`, what it says to `log`, and it keeps the descriptor `hold` open as long as it, or any
    child of it, lives. Record and log are opened here, so they belong to us even when the server runs as another user.
    """
    with _open_private(record) as out, _open_private(log) as err:
        return subprocess.Popen(
            ["/bin/sh", "-c", _RECORD_AND_EXEC, "headwater", *command.arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd="/",
            env=command.environment,
            umask=0o077,
            pass_fds=(hold,),
            start_new_session=True,
            **switch_to(command.account),
        )


def run(command: Command, *, hold: int) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in a session of its own and with `hold` kept open by it."""
    return subprocess.run(
        command.arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd="/",
        env=command.environment,
        umask=0o077,
        pass_fds=(hold,),
        start_new_session=True,
        **switch_to(command.account),
    )


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition, which is looked at once at least; whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now; who binds it must be ready to find it taken."""
    picks = SystemRandom().sample(_PORTS, _PORT_PICKS)
    for port in [*picks, 0]:
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError("no free TCP port on 127.0.0.1")


def _open_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


def _boot() -> str:
    return _BOOT.read_text().strip()


def _parse_stat(line: str) -> tuple[int, str, int, int]:
    """Number, state, parent and start time; the name before them is in parentheses and may hold anything."""
    pid, _, _ = line.partition(" ")
    fields = line[line.rindex(")") + 1 :].split()
    return int(pid), fields[0], int(fields[1]), int(fields[19])
