"""How fast capture reads, how fast batches decode, and how little memory a large transaction takes.

Reading is compared with `pg_recvlogical` writing to /dev/null, each on its own copy of the same slot, in turns; a ratio
above 1 means that capture is the faster one. Decoding is processor time on one core. Memory is that of a client process
that reads, spills and decodes one large transaction.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from benchmarks.clients.large_transaction import URL_VARIABLE
from benchmarks.report import Bar, Figure, report, wants_quick
from headwater.capture import Capture, CaptureSettings, emit_mark
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.model import Lsn
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.replication import Batch, decode_columns
from headwater.postgres.statements import execute_sync, fetch_sync, load
from headwater.postgres.types import Types

SQL = load("benchmarks", "sql/capture.sql")
ROUNDS = 3
# Enough for the server to stream them while they are written, at its default logical_decoding_work_mem.
ABORTED_ROWS = 500_000
PATIENCE_SECONDS = 120.0
# A server that loads quickly; what is measured is how its WAL is read, from memory.
SERVER = {"fsync": "off", "max_wal_size": "16GB", "shared_buffers": "512MB", "autovacuum": "off"}


@dataclass(frozen=True)
class Sizes:
    large: int = 1_000_000
    small: int = 300_000
    mixed: int = 600_000
    big_transaction: int = 5_000_000


QUICK = Sizes(large=200_000, small=60_000, mixed=120_000, big_transaction=500_000)


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
            self.scalar("create_slot", slot=slot)
            write(self, rows)
            found = Load(slot, rows, emit_mark(self.connection))
        yield found
        self.drop(slot)

    @contextmanager
    def copied(self, load: Load) -> Iterator[str]:
        copy = f"{load.slot}_copy"
        self.scalar("copy_slot", slot=load.slot, copy=copy)
        yield copy
        self.drop(copy)

    def drop(self, slot: str) -> None:
        """Drop a slot once its last reader has let go of it."""
        while self.scalar("is_active", slot=slot):
            time.sleep(0.01)
        self.scalar("drop_slot", slot=slot)

    def scalar(self, name: str, **parameters: object) -> bool:
        return fetch_sync(self.connection, SQL[name].bind(bool, **parameters))[0]

    def execute(self, name: str, **parameters: object) -> None:
        execute_sync(self.connection, SQL[name].bind(int, **parameters))


def main() -> None:
    quick = wants_quick()
    sizes = QUICK if quick else Sizes()
    with EmbeddedPostgres(PostgresSettings(config=SERVER)) as server, connect_sync(server.url) as connection:
        execute_sync(connection, SQL["create_objects"].compose())
        bench = Bench(server, connection)
        bars = [
            read_ratio(bench, "10k", sizes.large, write_large),
            read_ratio(bench, "1", sizes.small, write_small),
            Bar("decode_inserts_per_core", decode_rate(bench, "inserts", sizes.large // 2, write_large), at_least=600_000),
            Bar("decode_mixed_per_core", decode_rate(bench, "mixed", sizes.mixed, write_mixed), at_least=300_000),
            *big_transaction(bench, sizes.big_transaction),
        ]
    report("capture", quick, bench.figures, bars)


def write_large(bench: Bench, rows: int) -> None:
    bench.execute("empty_table")
    for first in range(1, rows, 10_000):
        bench.execute("write_rows", first=first, last=first + 9_999)


def write_small(bench: Bench, rows: int) -> None:
    bench.execute("empty_table")
    bench.execute("write_small", rows=rows)


def write_mixed(bench: Bench, changes: int) -> None:
    bench.execute("write_mixed", changes=changes)


def read_ratio(bench: Bench, label: str, rows: int, write: Callable[[Bench, int], None]) -> Bar:
    """Reading and framing, without decoding, against the server's own tool: the median of three turns."""
    ours, theirs = [], []
    with bench.loaded(f"read_{label}", rows, write) as load:
        for turn in range(ROUNDS):
            with bench.console.status(f"reading transactions of {label} rows, turn {turn + 1} of {ROUNDS}"):
                with bench.copied(load) as slot:
                    theirs.append(seconds_of_recvlogical(bench.server, slot, load.end))
                with bench.copied(load) as slot:
                    ours.append(seconds_of_capture(bench.server.url, slot, load))
    bench.figures[f"read_rows_per_s_{label}"] = round(rows / statistics.median(ours))
    bench.figures[f"recvlogical_rows_per_s_{label}"] = round(rows / statistics.median(theirs))
    ratio = statistics.median(their / our for our, their in zip(ours, theirs, strict=True))
    return Bar(f"read_ratio_{label}", round(ratio, 3), at_least=0.7)


def seconds_of_capture(url: str, slot: str, load: Load) -> float:
    started, changes = time.perf_counter(), 0
    with Capture(CaptureSettings(url=url, slot=slot, publications=("bench",))) as capture:
        for batch in capture:
            changes += batch.changes
            if batch.end is not None:
                capture.confirm(batch.end)
                if batch.end >= load.end:
                    break
        seconds = time.perf_counter() - started
    # The truncate before the load is a change too.
    assert changes == load.rows + 1, f"{changes} of {load.rows + 1} changes were read"
    return seconds


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


def decode_rate(bench: Bench, label: str, rows: int, write: Callable[[Bench, int], None]) -> float:
    """Changes decoded into Arrow in a second of processor time: the median of three passes over the same batches."""
    with bench.loaded(f"decode_{label}", rows, write) as load, bench.console.status(f"decoding {label}"):
        batches, types, rates = whole_batches(bench.server.url, load), Types.builtin(), []
        for _ in range(ROUNDS):
            started = time.process_time()
            changes = sum(len(group) for batch in batches for group in decode_columns(batch, types))
            rates.append(changes / (time.process_time() - started))
        assert changes >= rows, f"{changes} of {rows} changes were decoded"
    return round(statistics.median(rates))


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


def big_transaction(bench: Bench, rows: int) -> list[Bar]:
    """A transaction that is rolled back, then one that commits, both sent while in progress, to a client of its own."""
    bench.execute("empty_table")
    bench.scalar("create_slot", slot="big")
    with tempfile.TemporaryDirectory() as spill, bench.console.status(f"a transaction of {rows:,} rows"):
        client = start_client(bench.server.url, "big", spill, rows)
        wait_for(client, lambda: bench.scalar("is_active", slot="big"))
        aborted_bytes = write_and_roll_back(bench, client, max(rows // 5, ABORTED_ROWS))
        started = time.perf_counter()
        bench.execute("write_rows", first=1, last=rows)
        bench.execute("write_done")
        output, _ = client.communicate()
        seconds = time.perf_counter() - started
        if client.returncode != 0:
            raise subprocess.CalledProcessError(client.returncode, "the client of the large transaction")
        seen, left = json.loads(output), len([*Path(spill).iterdir()])
    bench.figures["big_transaction_seconds"] = round(seconds, 1)
    bench.figures["big_transaction_rows"] = rows
    # Rows that came twice, or that were rolled back.
    bench.figures["big_transaction_rows_surplus"] = seen["rows"] - seen["distinct"]
    bench.figures["big_transaction_aborted_streamed_mb"] = round(aborted_bytes / 2**20, 1)
    bench.figures["big_transaction_streamed_mb"] = round((streamed_bytes(bench, "big") - aborted_bytes) / 2**20, 1)
    bench.drop("big")
    return [
        Bar("big_transaction_rss_mb", round(seen["peak_rss_mb"], 1), at_most=200),
        Bar("big_transaction_rows_lost", rows - seen["distinct"], at_most=0),
        Bar("big_transaction_files_left", left + seen["open_spills"], at_most=0),
    ]


def start_client(url: str, slot: str, spill: str, rows: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.clients.large_transaction", slot, spill, str(rows)]
    # The URL has a password, so it goes by the environment: a command line can be read by everybody on the machine.
    environment = {**os.environ, URL_VARIABLE: url}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def write_and_roll_back(bench: Bench, client: subprocess.Popen[str], rows: int) -> int:
    """Roll a transaction back once a part of it was streamed; returns how many bytes were by then."""
    with connect_sync(bench.server.url) as writer, writer.transaction(force_rollback=True):
        execute_sync(writer, SQL["write_rows"].bind(int, first=1, last=rows))
        wait_for(client, lambda: streamed_bytes(bench, "big") > 0)
        return streamed_bytes(bench, "big")


def streamed_bytes(bench: Bench, slot: str) -> int:
    return fetch_sync(bench.connection, SQL["streamed_bytes"].bind(int, slot=slot))[0]


def wait_for(client: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Wait for what the client brings about; what does not come in time shows in the figures."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while client.poll() is None and not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
