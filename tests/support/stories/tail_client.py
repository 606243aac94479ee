"""`headwater tail` as a client that is killed under load, and an account of what its runs printed."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from headwater.model import Lsn
from headwater.postgres.connect import Connection, connect_sync
from tests.support.capture.captured_database import confirmed_flush
from tests.support.waiting import eventually

# WAL that the load may be ahead of the client: a backlog of a second or two.
_MOST_AHEAD_BYTES = 2 << 20
_AHEAD = "select pg_current_wal_lsn() - confirmed_flush_lsn from pg_replication_slots where slot_name = 'hw'"
_COMMAND = (sys.executable, "-m", "headwater.cli", "tail", "--slot", "hw", "--publication", "pub", "--json")
# About a hundred transactions a second: the client keeps up, so it dies at the edge of the stream as well as in a backlog.
_PAUSE_SECONDS = 0.01


def prepare_capture(connection: Connection) -> None:
    """Create tables, publication and slot; transactions of more than 64 kB are streamed."""
    connection.execute(f"alter database \"{connection.info.dbname}\" set logical_decoding_work_mem = '64kB'".encode())
    connection.execute("create table event (id int primary key, v text)")
    connection.execute("create table account (id int primary key, balance int, v text, at timestamptz)")
    connection.execute("create publication pub for table event, account")
    connection.execute("select pg_create_logical_replication_slot('hw', 'pgoutput')")


class EventLoad:
    """Transactions of many kinds and sizes until told to stop; some are rolled back, some large enough to be streamed."""

    def __init__(self, url: str, choose: random.Random) -> None:
        self._url, self._random, self._stop = url, choose, Event()
        self._thread = Thread(target=self._run)
        self._next = 1

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with connect_sync(self._url) as connection:
            while not self._stop.wait(_PAUSE_SECONDS):
                ((ahead,),) = connection.execute(_AHEAD).fetchall()
                if ahead < _MOST_AHEAD_BYTES:
                    self._transaction(connection, self._random.choices([1, 5, 50, 1000], [50, 34, 13, 3])[0])

    def _transaction(self, connection: Connection, size: int) -> None:
        first, self._next = self._next, self._next + size
        connection.execute("begin")
        connection.execute(
            "insert into event select g, md5(g::text) from generate_series(%s::int, %s::int) g", [first, self._next - 1]
        )
        connection.execute("savepoint s")
        account = self._random.randint(1, 200)
        connection.execute("update account set balance = balance + 1, at = clock_timestamp() where id = %s", [account])
        if self._random.random() < 0.3:
            connection.execute("rollback to s")
        connection.execute("delete from account where id = %s", [self._random.randint(1, 200)])
        connection.execute(
            "insert into account values (%s, 0, 'x') on conflict (id) do update set balance = excluded.balance", [account]
        )
        connection.execute("rollback" if self._random.random() < 0.1 else "commit")


@dataclass(frozen=True)
class Printed:
    """What one run of the client printed, and where the slot stood before it."""

    confirmed_before: Lsn
    changes: list[dict[str, Any]]

    @property
    def positions(self) -> list[tuple[Lsn, int]]:
        return [(Lsn.parse(change["commit_lsn"]), change["ordinal"]) for change in self.changes]


class TailClient:
    """Runs of `headwater tail`, one after the other, each with a file for what it prints."""

    def __init__(self, url: str, connection: Connection, directory: Path) -> None:
        self.runs: list[Printed] = []
        self._url, self._connection, self._directory = url, connection, directory

    def run_until_failpoint(self, environment: Mapping[str, str]) -> int:
        """Run until a failpoint ends it; returns the exit code."""
        before, client, output = self._start(environment)
        code = client.wait(timeout=120)
        self._add(before, output.read_bytes())
        return code

    def run_unread_until_failpoint(self, environment: Mapping[str, str]) -> int:
        """As `run_until_failpoint`, with nobody who reads what it prints: most of what it has read from the slot is not."""
        before = confirmed_flush(self._connection)
        with subprocess.Popen(_COMMAND, stdout=subprocess.PIPE, env=self._environment(environment)) as client:
            assert client.stdout is not None
            code = client.wait(timeout=120)
            self._add(before, client.stdout.read())
        return code

    def run_until_bytes(self, size: int) -> None:
        """Run until so many bytes are printed, and kill it."""
        before, client, output = self._start({})

        def look() -> bool:
            assert client.poll() is None, f"the client ended by itself with {client.returncode}"
            return output.stat().st_size > size

        eventually(look, seconds=60)
        client.kill()
        client.wait()
        self._add(before, output.read_bytes())

    def run_to_the_end(self) -> None:
        """Run until all that has committed is printed."""
        before, client, output = self._start({}, "--once")
        assert client.wait(timeout=120) == 0
        self._add(before, output.read_bytes())

    def _start(self, environment: Mapping[str, str], *more: str) -> tuple[Lsn, subprocess.Popen[bytes], Path]:
        before, output = confirmed_flush(self._connection), self._directory / f"{len(self.runs)}.jsonl"
        with output.open("wb") as file:
            return before, subprocess.Popen([*_COMMAND, *more], stdout=file, env=self._environment(environment)), output

    def _environment(self, added: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, "HEADWATER_URL": self._url, **added}

    def _add(self, before: Lsn, printed: bytes) -> None:
        # The last line may be cut off: it was not printed whole, so nothing of its batch can have been confirmed.
        lines = printed.decode().split("\n")[:-1]
        self.runs.append(Printed(before, [json.loads(line) for line in lines]))


@dataclass(frozen=True)
class Account:
    """What became of what was committed.

    `confirmed_again` counts changes that were repeated though the slot had confirmed them. `unconfirmed` counts those that a
    run had printed when the next one began, and the slot had not confirmed: these may be repeated. `wrong` counts values
    that are not those of the tables.
    """

    events: int
    changes: int
    lost: int
    repeated: int
    out_of_order: int
    confirmed_again: int
    unconfirmed: int
    wrong: int

    def __str__(self) -> str:
        return f"{self.events} events, {self.changes} changes, lost {self.lost}, repeated {self.repeated}"

    @property
    def is_kept(self) -> bool:
        """Whether nothing is lost, out of order, or repeated that was confirmed."""
        is_right = (self.lost, self.out_of_order, self.confirmed_again, self.wrong) == (0, 0, 0, 0)
        return is_right and self.repeated <= self.unconfirmed


def compare(connection: Connection, runs: Sequence[Printed]) -> Account:
    """Compare what was printed with the tables, which nobody writes to any more."""
    events = dict(connection.execute("select id, v from event").fetchall())
    accounts = {row[0]: row[1:] for row in connection.execute("select id, balance, v from account").fetchall()}
    seen = Counter(change["id"] for each in runs for change in each.changes)
    delivered = {c["after"]["id"]: c["after"]["v"] for each in runs for c in each.changes if c["table"] == "event"}
    replayed, astray = _replayed(runs)
    return Account(
        events=len(events),
        changes=len(seen),
        lost=len(events.keys() - delivered.keys()),
        repeated=sum(seen.values()) - len(seen),
        out_of_order=sum(each.positions != sorted(set(each.positions)) for each in runs),
        confirmed_again=sum(commit < each.confirmed_before for each in runs for commit, _ in each.positions),
        unconfirmed=sum(len(_unconfirmed(runs[:number], each.confirmed_before)) for number, each in enumerate(runs)),
        wrong=astray
        + len(set(delivered.items()) - set(events.items()))
        + len(set(replayed.items()) ^ set(accounts.items())),
    )


def _unconfirmed(earlier: Sequence[Printed], confirmed: Lsn) -> set[tuple[Lsn, int]]:
    """The positions that were printed by then, and lie behind what the slot has confirmed."""
    return {position for each in earlier for position in each.positions if position[0] >= confirmed}


def _replayed(runs: Sequence[Printed]) -> tuple[dict[int, tuple[int, str]], int]:
    """The accounts as the changes leave them, applied in the order of their positions, each once.

    And how many deletes were of rows that are not there.
    """
    changes = {change["id"]: change for each in runs for change in each.changes if change["table"] == "account"}
    ordered = sorted(changes.values(), key=lambda change: (Lsn.parse(change["commit_lsn"]), change["ordinal"]))
    rows: dict[int, tuple[int, str]] = {}
    astray = 0
    for change in ordered:
        if change["op"] == "d":
            astray += rows.pop(change["key"]["id"], None) is None
        else:
            rows[change["after"]["id"]] = (change["after"]["balance"], change["after"]["v"])
    return rows, astray
