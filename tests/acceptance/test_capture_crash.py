"""A client killed at random points of a load loses nothing, repeats only what was not confirmed, and keeps the order."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from headwater.model import Lsn
from headwater.postgres.connect import Connection, connect_sync
from tests.capturing import confirmed_flush
from tests.waiting import eventually

ROUNDS = 20


class Load:
    """Transactions of many kinds and sizes until told to stop; some are rolled back, some large enough to be streamed."""

    def __init__(self, url: str, seed: int) -> None:
        self._url, self._random, self._stop = url, random.Random(seed), Event()
        self._thread = Thread(target=self._run)
        self._next = 1

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with connect_sync(self._url) as connection:
            # About a hundred transactions a second: the client keeps up, so it dies at the edge of the stream as well as
            # in the backlog that has gathered while none ran.
            while not self._stop.wait(0.01):
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
class Round:
    """What one run of the client printed, and where the slot stood before it."""

    confirmed_before: Lsn
    changes: list[dict[str, Any]]

    @property
    def positions(self) -> list[tuple[Lsn, int]]:
        return [(Lsn.parse(change["commit_lsn"]), change["ordinal"]) for change in self.changes]


def _start(url: str, output: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headwater.cli", "tail", "--slot", "hw", "--publication", "pub", "--json", *arguments]
    with output.open("wb") as file:
        return subprocess.Popen(command, stdout=file, env={**os.environ, "HEADWATER_URL": url})


def _printed(output: Path) -> list[dict[str, Any]]:
    # The last line may be cut off: it was not printed whole, so nothing of its batch can have been confirmed.
    lines = output.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def _killed_round(url: str, connection: Connection, output: Path, delay: float, *, while_starting: bool) -> Round:
    """Run the client and kill it: after a while from its start, or from the first change that it prints."""
    before = confirmed_flush(connection)
    client = _start(url, output)
    if not while_starting:
        eventually(lambda: output.stat().st_size, seconds=60)
    try:
        client.wait(timeout=delay)
        pytest.fail(f"the client ended by itself with {client.returncode}")
    except subprocess.TimeoutExpired:
        client.kill()
        client.wait()
    return Round(before, _printed(output))


def _last_round(url: str, connection: Connection, output: Path) -> Round:
    before = confirmed_flush(connection)
    assert _start(url, output, "--once").wait(timeout=120) == 0
    return Round(before, _printed(output))


@pytest.mark.timeout(300)
def test_a_client_killed_twenty_times_under_load_loses_nothing_and_keeps_the_order(database, tmp_path, record_property):
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    with connect_sync(database) as connection:
        connection.execute(f"alter database \"{connection.info.dbname}\" set logical_decoding_work_mem = '64kB'".encode())
        connection.execute("create table event (id int primary key, v text)")
        connection.execute("create table account (id int primary key, balance int, v text, at timestamptz)")
        connection.execute("create publication pub for table event, account")
        connection.execute("select pg_create_logical_replication_slot('hw', 'pgoutput')")
        with Load(database, seed):
            rounds = [
                _killed_round(
                    database, connection, tmp_path / f"{i}.jsonl", chance.uniform(0, 0.8), while_starting=i % 5 == 0
                )
                for i in range(ROUNDS)
            ]
        rounds.append(_last_round(database, connection, tmp_path / "last.jsonl"))
        events = dict(connection.execute("select id, v from event").fetchall())
        accounts = {row[0]: row[1:] for row in connection.execute("select id, balance, v from account").fetchall()}

    seen = Counter(change["id"] for each in rounds for change in each.changes)
    repeated = sum(seen.values()) - len(seen)
    delivered = {c["after"]["id"]: c["after"]["v"] for each in rounds for c in each.changes if c["table"] == "event"}
    lost = events.keys() - delivered.keys()
    counts = f"{len(events)} events, {len(seen)} changes, lost {len(lost)}, repeated {repeated}"
    record_property("counts", f"client killed {ROUNDS} times (seed {seed}): {counts}")
    assert not lost
    assert delivered == events, "something was delivered that is not in the table"
    for each in rounds:
        assert each.positions == sorted(set(each.positions)), "the order was not kept"
        assert all(commit >= each.confirmed_before for commit, _ in each.positions), "something confirmed came again"
    assert _replayed(rounds) == accounts


def _replayed(rounds: list[Round]) -> dict[int, tuple[int, str]]:
    """The accounts as the changes leave them, applied in the order of their positions, each once."""
    changes = {change["id"]: change for each in rounds for change in each.changes if change["table"] == "account"}
    ordered = sorted(changes.values(), key=lambda change: (Lsn.parse(change["commit_lsn"]), change["ordinal"]))
    rows: dict[int, tuple[int, str]] = {}
    for change in ordered:
        if change["op"] == "d":
            del rows[change["key"]["id"]]
        else:
            rows[change["after"]["id"]] = (change["after"]["balance"], change["after"]["v"])
    return rows
