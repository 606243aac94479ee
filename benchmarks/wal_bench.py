"""A server whose WAL is read: slots that stand before a load of rows, and the loads and readers that benchmarks share."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from rich.console import Console

from benchmarks import statements
from benchmarks.report import Figure
from headwater.capture import Capture, CaptureSettings, emit_mark
from headwater.embedded import EmbeddedPostgres
from headwater.model import Lsn
from headwater.postgres.connect import Connection
from headwater.postgres.replication import Batch
from headwater.postgres.statements import Statement, execute_sync, fetch_sync

# A server that loads quickly; what is measured is how its WAL is read, from memory.
SERVER: Final = {"fsync": "off", "max_wal_size": "16GB", "shared_buffers": "512MB", "autovacuum": "off"}


@dataclass(frozen=True)
class Load:
    """A slot that stands before a load of so many rows, and the position behind it."""

    slot: str
    rows: int
    end: Lsn


@dataclass(frozen=True)
class Bench:
    """A server to measure on, and what was measured beside the bars."""

    server: EmbeddedPostgres
    connection: Connection
    console: Console = field(default_factory=lambda: Console(stderr=True))
    figures: dict[str, Figure] = field(default_factory=dict)

    @contextmanager
    def loaded(self, slot: str, rows: int, write: Callable[["Bench", int], None]) -> Iterator[Load]:
        with self.console.status(f"loading {rows:,} changes for {slot}"):
            self.scalar(statements.create_slot(slot))
            write(self, rows)
            found = Load(slot, rows, emit_mark(self.connection))
        yield found
        self.drop(slot)

    @contextmanager
    def copied(self, load: Load) -> Iterator[str]:
        copy = f"{load.slot}_copy"
        self.scalar(statements.copy_slot(load.slot, copy))
        yield copy
        self.drop(copy)

    def drop(self, slot: str) -> None:
        """Drop a slot once its last reader has let go of it."""
        while self.scalar(statements.is_active(slot)):
            time.sleep(0.01)
        self.scalar(statements.drop_slot(slot))

    def scalar(self, statement: Statement[bool]) -> bool:
        return fetch_sync(self.connection, statement)[0]

    def execute(self, statement: Statement[int]) -> None:
        execute_sync(self.connection, statement)


def write_large(bench: Bench, rows: int) -> None:
    bench.execute(statements.empty_rows())
    for first in range(1, rows, 10_000):
        bench.execute(statements.write_rows(first, first + 9_999))


def write_small(bench: Bench, rows: int) -> None:
    bench.execute(statements.empty_rows())
    bench.execute(statements.write_small(rows))


def seconds_of_recvlogical(server: EmbeddedPostgres, slot: str, end: Lsn) -> float:
    parts = urlsplit(server.url)
    target = f"host={parts.hostname} port={parts.port} user={parts.username} dbname={parts.path[1:]}"
    command = [str(server.bin_directory / "pg_recvlogical"), "--dbname", target, "--slot", slot]
    command += ["--start", "--no-loop", "--file", "/dev/null", "--endpos", str(end)]
    for option in ("proto_version=2", "publication_names=bench", "streaming=on", "messages=true"):
        command += ["--option", option]
    started = time.perf_counter()
    # The password goes by the environment: a command line can be read by everybody on the machine.
    subprocess.run(command, check=True, env={**os.environ, "PGPASSWORD": parts.password or ""})
    return time.perf_counter() - started


def whole_batches(url: str, load: Load) -> list[Batch]:
    """All of a load in batches of full size, which are cut short only for a consumer that waits."""
    settings = CaptureSettings(url=url, slot=load.slot, publications=("bench",), buffer_bytes=1 << 30)
    with Capture(settings) as capture:
        while capture.received < load.end:
            time.sleep(0.05)
        found = [next(iter(capture))]
        while (found[-1].end or Lsn(0)) < load.end:
            found.append(next(iter(capture)))
    return found
