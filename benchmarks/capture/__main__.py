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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.capture import statements
from benchmarks.capture.large_transaction import URL_VARIABLE
from benchmarks.report import Bar, report, wants_quick
from benchmarks.statements import create_rows, create_slot, empty_rows, is_active, write_rows
from benchmarks.wal_bench import SERVER, Bench, Load, seconds_of_recvlogical, whole_batches, write_large, write_small
from headwater.capture import Capture, CaptureSettings
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication import decode_columns
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.postgres.types import Types

ROUNDS = 3
# Enough for the server to stream them while they are written, at its default logical_decoding_work_mem.
ABORTED_ROWS = 500_000
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Sizes:
    large: int = 1_000_000
    small: int = 300_000
    mixed: int = 600_000
    big_transaction: int = 5_000_000


QUICK = Sizes(large=200_000, small=60_000, mixed=120_000, big_transaction=500_000)


def main() -> None:
    quick = wants_quick()
    sizes = QUICK if quick else Sizes()
    with EmbeddedPostgres(PostgresSettings(config=SERVER)) as server, connect_sync(server.url) as connection:
        execute_sync(connection, create_rows())
        execute_sync(connection, statements.create_objects())
        bench = Bench(server, connection)
        bars = [
            read_ratio(bench, "10k", sizes.large, write_large),
            read_ratio(bench, "1", sizes.small, write_small),
            Bar("decode_inserts_per_core", decode_rate(bench, "inserts", sizes.large // 2, write_large), at_least=600_000),
            Bar("decode_mixed_per_core", decode_rate(bench, "mixed", sizes.mixed, write_mixed), at_least=300_000),
            *big_transaction(bench, sizes.big_transaction),
        ]
    report("capture", quick, bench.figures, bars)


def write_mixed(bench: Bench, changes: int) -> None:
    bench.execute(statements.write_mixed(changes))


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


def big_transaction(bench: Bench, rows: int) -> list[Bar]:
    """A transaction that is rolled back, then one that commits, both sent while in progress, to a client of its own."""
    bench.execute(empty_rows())
    bench.scalar(create_slot("big"))
    with tempfile.TemporaryDirectory() as spill, bench.console.status(f"a transaction of {rows:,} rows"):
        client = start_client(bench.server.url, "big", spill, rows)
        wait_for(client, lambda: bench.scalar(is_active("big")))
        aborted_bytes = write_and_roll_back(bench, client, max(rows // 5, ABORTED_ROWS))
        started = time.perf_counter()
        bench.execute(write_rows(1, rows))
        bench.execute(statements.write_done())
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
    command = [sys.executable, "-m", "benchmarks.capture.large_transaction", slot, spill, str(rows)]
    # The URL has a password, so it goes by the environment: a command line can be read by everybody on the machine.
    environment = {**os.environ, URL_VARIABLE: url}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def write_and_roll_back(bench: Bench, client: subprocess.Popen[str], rows: int) -> int:
    """Roll a transaction back once a part of it was streamed; returns how many bytes were by then."""
    with connect_sync(bench.server.url) as writer, writer.transaction(force_rollback=True):
        execute_sync(writer, write_rows(1, rows))
        wait_for(client, lambda: streamed_bytes(bench, "big") > 0)
        return streamed_bytes(bench, "big")


def streamed_bytes(bench: Bench, slot: str) -> int:
    return fetch_sync(bench.connection, statements.streamed_bytes(slot))[0]


def wait_for(client: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Wait for what the client brings about; what does not come in time shows in the figures."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while client.poll() is None and not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
