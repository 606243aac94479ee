"""Start `owner_program.py` as a process of its own and read what it says."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class Owner:
    """A running `owner_program.py`, and what it said: of the server it started, or the error it met."""

    program: subprocess.Popen[str]
    said: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.said["url"])

    @property
    def directory(self) -> Path:
        return Path(self.said["directory"])

    def is_server_running(self) -> bool:
        try:
            return psutil.Process(self.said["pid"]).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@contextmanager
def owner_of(kind: str, **given: object) -> Iterator[Owner]:
    """Run it during the block; at its end it is told to finish, unless the test has killed it."""
    with owner_process(kind, **given) as program:
        assert program.stdout is not None
        yield Owner(program, json.loads(program.stdout.readline()))


def owner_process(kind: str, **given: object) -> subprocess.Popen[str]:
    """The same, before it has said anything."""
    settings = json.dumps({name: str(value) for name, value in given.items()})
    command = [sys.executable, str(Path(__file__).with_name("owner_program.py")), kind, settings]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def abandoned(kind: str, **given: object) -> Owner:
    """A server whose owner was killed without warning."""
    with owner_of(kind, **given) as owner:
        owner.program.kill()
        owner.program.wait()
    assert owner.is_server_running()
    return owner
