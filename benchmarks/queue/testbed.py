"""What the parts share: a server with durable commits, and the processes that enqueue and work."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import psutil

from benchmarks.process_usage import cpu_of
from benchmarks.queue import statements
from benchmarks.queue.processes import Helper, helping
from benchmarks.report import Output
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.statements import Statement, execute_sync, fetch_sync

# Commits are as durable and vacuums as frequent as they are by default. Checkpoints are kept out of the way, so that they do
# not fall into one arm and not the other.
SERVER: Final[Mapping[str, str]] = {
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "512MB",
    "max_connections": "300",
}
# How often is looked whether the others are done.
LOOK_SECONDS: Final = 0.005

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Testbed:
    """A database, and the processes."""

    url: str
    connection: Connection
    server: psutil.Process
    helpers: list[Helper]
    output: Output

    def server_cpu(self) -> float:
        """The seconds of a processor that the server has used."""
        return cpu_of(self.server)

    def settle(self) -> None:
        execute_sync(self.connection, statements.settle())

    def number(self, statement: Statement[Number]) -> Number:
        (found,) = fetch_sync(self.connection, statement)
        return found

    def wait_until(self, is_so: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Raises if it is not so in time, or if a process has failed meanwhile."""
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, f"{what} not within {seconds:.0f} s"
            time.sleep(LOOK_SECONDS)

    def wait_until_ready(self, helpers: list[Helper]) -> None:
        for helper in helpers:
            while not helper.board.is_ready.value:
                if helper.is_done(LOOK_SECONDS):
                    helper.result()


@contextmanager
def start_testbed(output: Output, *, helpers: int, config: Mapping[str, str] = SERVER) -> Iterator[Testbed]:
    with (
        output.console.status("starting PostgreSQL and the processes that enqueue and work"),
        EmbeddedPostgres(PostgresSettings(config=config)) as server,
        closing(connect_sync(server.url, application_name="benchmark")) as connection,
        helping(helpers) as processes,
    ):
        postmaster = psutil.Process(connection.info.backend_pid).parent()
        assert postmaster is not None
        yield Testbed(server.url, connection, postmaster, processes, output)
