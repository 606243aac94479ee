"""`headwater run` as a process whose parts can be killed, and what it is to bring about: two databases that are equal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
import psycopg
from psycopg import sql

from headwater.embedded import EmbeddedPostgres
from headwater.errors import HeadwaterError
from headwater.postgres.connect import connect_sync
from tests.support.servers.spark_session import story_environment
from tests.support.waiting import eventually

# How long a target may take to become equal once nothing is written any more.
_SETTLE_SECONDS = 120
_COMMAND = (sys.executable, "-m", "headwater.cli", "run")


class Runner:
    """`headwater run` as a process, started again when it was killed; its own end is a failure.

    Its output is in a file of its directory. `environment` is added to that of the tests, in all processes it starts.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None, *, log_name: str = "run.log") -> None:
        self._directory, self._environment, self._log = directory, dict(environment or {}), directory / log_name
        self._process = self._start()

    @property
    def tree(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children(recursive=True)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self, environment: Mapping[str, str] | None = None) -> None:
        """Kill the driver, and start it again, with another environment if one is given."""
        self.end()
        self.start(environment)

    def wait_for_kill(self, seconds: float = 120) -> None:
        """Wait until a failpoint has killed the driver; `start` starts it again."""
        code = self._process.wait(seconds)
        assert code == -signal.SIGKILL, f"the run has ended with {code}: {self.log[-2000:]}"

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the driver again after `wait_for_kill`, with another environment if one is given."""
        if environment is not None:
            self._environment = dict(environment)
        self._process = self._start()

    def require_life(self) -> None:
        assert self._process.poll() is None, f"the run has ended with {self._process.returncode}: {self.log[-2000:]}"

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            environment = {**os.environ, **story_environment(), **self._environment}
            return subprocess.Popen(_COMMAND, cwd=self._directory, stdout=log, stderr=log, env=environment)


@dataclass(frozen=True)
class Ended:
    """How a run has ended, and what it said."""

    code: int
    said: str


@contextmanager
def running(directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[Runner]:
    runner = Runner(directory, environment)
    try:
        yield runner
    finally:
        runner.end()


def run_once(directory: Path, environment: Mapping[str, str] | None = None) -> Ended:
    """Deliver what is there, or fail."""
    given, command = {**os.environ, **story_environment(), **(environment or {})}, [*_COMMAND, "--once"]
    done = subprocess.run(command, cwd=directory, env=given, capture_output=True, text=True, timeout=120, check=False)
    return Ended(done.returncode, done.stderr)


def write_file(directory: Path, name: str, *, source: str, target: str, top: str = "", **keys: object) -> None:
    """A pipeline file from one database to another; `keys` are of the source, `top` are lines above it."""
    lines = "\n".join(f"{key} = {_toml(value)}" for key, value in keys.items())
    (directory / "headwater.toml").write_text(
        f"""
name = "{name}"
{top}
[source]
url = "{source}"
{lines}
[[sinks]]
type = "postgres"
url = "{target}"
[spark]
master = "local[2]"
"""
    )


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def kill(victim: str, runner: Runner, source: EmbeddedPostgres, target: EmbeddedPostgres) -> None:
    """Kill the driver, a worker, the planner, the source or the target; what does not come back by itself is started."""
    match victim:
        case "driver":
            runner.kill()
        case "worker":
            _kill_one(runner, _is_worker)
        case "planner":
            _kill_one(runner, _is_planner)
        case "source":
            source.kill()
            source.start()
        case "target":
            target.kill()
            target.start()


def _is_worker(process: psutil.Process) -> bool:
    """Whether it is a worker: a fork of Spark's Python daemon."""
    return _is_daemon(process) and _is_daemon(process.parent())


def _is_daemon(process: psutil.Process | None) -> bool:
    return process is not None and "headwater.python_daemon" in process.cmdline()


def _is_planner(process: psutil.Process) -> bool:
    return any("python_streaming_source_runner" in argument for argument in process.cmdline())


def _kill_one(runner: Runner, is_victim: Callable[[psutil.Process], bool]) -> None:
    def found() -> list[psutil.Process]:
        victims = []
        for process in runner.tree:
            try:
                if is_victim(process):
                    victims.append(process)
            except psutil.NoSuchProcess:
                continue
        return victims

    eventually(found, seconds=60)[0].kill()


def execute(url: str, *statements: str) -> None:
    """Each in a transaction of its own."""
    with closing(connect_sync(url)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def fetch(url: str, query: str, *parameters: object) -> list[tuple[object, ...]]:
    with closing(connect_sync(url)) as connection:
        return connection.execute(query.encode(), parameters).fetchall()


def rows(url: str, table: str) -> list[tuple[object, ...]]:
    with closing(connect_sync(url)) as connection:
        return sorted(connection.execute(sql.SQL("select * from {}").format(sql.Identifier(table))).fetchall(), key=repr)


def are_equal(source: str, target: str, tables: Sequence[str]) -> bool:
    """Whether all rows are the same, by their checksums; False while a database does not answer."""
    return all((found := _checksum(source, table)) is not None and found == _checksum(target, table) for table in tables)


def _checksum(url: str, table: str) -> tuple[object, ...] | None:
    name = sql.Identifier(table)
    query = sql.SQL("select count(*), sum(hashtextextended({}::text, 0)::numeric) from {}").format(name, name)
    try:
        with closing(connect_sync(url)) as connection:
            return tuple(connection.execute(query).fetchall()[0])
    except (psycopg.Error, HeadwaterError):
        return None


@dataclass(frozen=True)
class Difference:
    """What a target lacks, what it has that the source does not, and what it has more than once."""

    rows: int
    lost: int
    ghosts: int
    twice: int

    def __str__(self) -> str:
        return f"{self.rows} rows, lost {self.lost}, ghosts {self.ghosts}, duplicated {self.twice}"

    @property
    def is_none(self) -> bool:
        return (self.lost, self.ghosts, self.twice) == (0, 0, 0)


def difference(source: str, target: str, tables: Sequence[str]) -> Difference:
    """Compare row by row; rows of a source are told apart by a key or by their values."""
    count = lost = ghosts = twice = 0
    for table in tables:
        wanted, found = rows(source, table), rows(target, table)
        count += len(wanted)
        lost += len(set(wanted) - set(found))
        ghosts += len(set(found) - set(wanted))
        twice += len(found) - len(set(found))
    return Difference(count, lost, ghosts, twice)


class Running(Protocol):
    """A pipeline in a process or in a thread."""

    def require_life(self) -> None:
        """Fail if it has ended by itself."""


def settle(runner: Running, source: str, target: str, tables: Sequence[str]) -> Difference:
    """Wait until the target is equal to the source, but not for ever; returns what is different then."""
    deadline = time.monotonic() + _SETTLE_SECONDS

    def look() -> bool:
        runner.require_life()
        return are_equal(source, target, tables) or time.monotonic() > deadline

    eventually(look, seconds=2 * _SETTLE_SECONDS)
    return difference(source, target, tables)
