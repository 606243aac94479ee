"""Snapshot and stream joined under load: what a replica has at the end is what the source has, and no change came twice.

The randomized checker writes in all the ways that make the join hard. The tests after it take one step of the procedure away
and show what is lost then; with all of them, nothing is.
"""

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from threading import Event, Thread
from typing import Any

import psycopg
import pytest

from headwater.capture import snapshot
from headwater.embedded import EmbeddedPostgres
from tests.loading import Replica, follow
from tests.servers import fresh_database, postgres_settings
from tests.streams import reading

LONG = os.environ.get("HEADWATER_LONG") == "1"
ROUNDS = 100 if LONG else 3
TABLES = ("item", "note")

# ruff: noqa: S608 - the statements of this test are built from names of its own

pytestmark = pytest.mark.timeout(3600 if LONG else 240)


def _options(url: str, **more: object) -> dict[str, object]:
    return {"url": url, "slot": "hw", "tables": "public.item,public.note", "shape": "wire", "snapshot": "initial", **more}


def _rows(url: str, table: str) -> dict[str, dict[str, Any]]:
    with psycopg.connect(url) as connection:
        found = connection.execute(f"select id::text, v from {table}").fetchall()
    return {key: {"id": key, "v": value} for key, value in found}


def _is_loaded(at: dict[str, Any]) -> bool:
    return at["load"] is None and not at["dropped"]


class Writer:
    """One who writes in many ways until told to stop; ids are its own, so that nobody waits for anybody."""

    def __init__(self, url: str, number: int, seed: int, *, prepares: bool = True) -> None:
        self._url, self._number, self._random, self._prepares = url, number, random.Random(seed), prepares
        self._stop = Event()
        self._last = number * 1_000_000
        self._mine: list[int] = []
        self.transactions = 0
        self._thread = Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with closing(psycopg.connect(self._url, autocommit=True)) as connection:
            connection.execute(f"set synchronous_commit = {self._random.choice(['on', 'local', 'off'])}")
            while not self._stop.wait(0.002):
                kept = list(self._mine)
                try:
                    self._transaction(connection)
                    self.transactions += 1
                except (
                    psycopg.errors.RaiseException,
                    psycopg.errors.UniqueViolation,
                    # Writers meet at the old rows, in any order.
                    psycopg.errors.DeadlockDetected,
                ):
                    self._mine = kept

    def _transaction(self, connection: Any) -> None:
        choose, table = self._random, self._random.choice(TABLES)
        connection.execute("begin")
        try:
            for _ in range(choose.choice([1, 1, 2, 5, 80])):
                kept = list(self._mine)
                connection.execute("savepoint s")
                self._change(connection, choose.choice([table, *TABLES]))
                if choose.random() < 0.2:
                    connection.execute("rollback to savepoint s")
                    self._mine = kept
            if choose.random() < 0.05:
                self._stop.wait(choose.random() * 0.5)
        except BaseException:
            connection.execute("rollback")
            raise
        self._settle(connection)

    def _settle(self, connection: Any) -> None:
        match self._random.randint(1, 12):
            case 1:
                connection.execute("rollback")
                # What it wrote is not there; it begins with new rows.
                self._mine = []
            case 2 if self._prepares:
                name = f"{self._number}-{self._last}"
                connection.execute(f"prepare transaction '{name}'")
                self._stop.wait(self._random.random() * 0.2)
                connection.execute(f"commit prepared '{name}'")
            case _:
                connection.execute("commit")

    def _change(self, connection: Any, table: str) -> None:
        choose = self._random
        match choose.randint(1, 10):
            case 1 | 2 | 3 | 4:
                self._last += 1
                self._mine.append(self._last)
                connection.execute(f"insert into {table} values (%s, %s)", [self._last, f"{choose.random()}"])
            case 5 if choose.random() < 0.3:
                with connection.cursor().copy(f"copy {table} from stdin") as copy:
                    for _ in range(50):
                        self._last += 1
                        copy.write_row((self._last, "copied"))
            case 6 | 7 if self._mine:
                connection.execute(
                    f"update {table} set v = %s where id = %s", [f"{choose.random()}", choose.choice(self._mine)]
                )
            case 8 if self._mine:
                connection.execute(f"delete from {table} where id = %s", [choose.choice(self._mine)])
            case 9:
                self._last += 1
                connection.execute(
                    f"insert into {table} values (%s, 'new') on conflict (id) do update set v = 'other'", [self._last]
                )
            case _:
                connection.execute(f"update {table} set v = v || '.' where id = %s", [choose.randint(1, 3000)])


class Hanging:
    """Commits hang on a standby that is not there, time and again: written and streamed, and not visible."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(psycopg.connect(self._url, autocommit=True)) as connection:
            connection.execute("set synchronous_commit = local")
            while not self._stop.is_set():
                for names in ("nobody", ""):
                    _set_standby(connection, names)
                    self._stop.wait(0.15)
            _set_standby(connection, "")


def _set_standby(connection: Any, names: str) -> None:
    connection.execute(f"alter system set synchronous_standby_names = '{names}'")
    connection.execute("select pg_reload_conf()")


def _tables(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set synchronous_commit = local")
        for table in TABLES:
            connection.execute(f"create table {table} (id bigint primary key, v text)")
            connection.execute(f"insert into {table} select g, 'row ' || g from generate_series(1, 3000) g")


@contextmanager
def _server(**config: str) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(postgres_settings(18, **config)) as server:
        yield server


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr("headwater.capture.pieces.PIECE_PAGES", 4)
    monkeypatch.setattr("headwater.spark.sources.loader._PIECES_ALONE", 1)


def _round(url: str, seed: int, *, hanging: bool) -> tuple[int, Replica]:
    """Load two tables under writers, then one of them again, and follow until all has come; returns the transactions."""
    choose, replica = random.Random(seed), Replica()
    writers = [Writer(url, number, seed + number) for number in range(1, 5)]
    hangs = Hanging(url) if hanging else None
    lanes = choose.choice([1, 4])
    try:
        with reading(**_options(url, lanes=lanes, tables=f"public.{TABLES[0]}")) as reader:
            at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] is not None)
            if choose.random() < 0.5:
                at = follow(reader, replica, at, lambda at: at["load"] is None or at["load"]["delivered"])
        # A new process: whatever was begun is begun anew, and goes on from there.
        with reading(**_options(url, lanes=lanes, tables=f"public.{TABLES[0]}")) as reader:
            at = follow(reader, replica, at, _is_loaded)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("set synchronous_commit = local")
                connection.execute(f"select headwater.add_table('hw', 'public.{TABLES[1]}')")
                at = follow(reader, replica, at, lambda _: ("public", TABLES[1]) in replica.tables)
                connection.execute(f"select headwater.snapshot_table('hw', 'public.{choose.choice(TABLES)}')")
                if choose.random() < 0.5:
                    _truncate_and_freeze(connection)
                at = follow(reader, replica, at, lambda at: at["load"] is not None)
            at = follow(reader, replica, at, _is_loaded)
            for writer in writers:
                writer.end()
            if hangs is not None:
                hangs.end()
            for writer in writers:
                writer.join()
            follow(
                reader,
                replica,
                at,
                lambda at: _is_loaded(at) and all(replica.tables[("public", name)] == _rows(url, name) for name in TABLES),
                seconds=30,
            )
    finally:
        for writer in writers:
            writer.end()
        if hangs is not None:
            hangs.end()
    return sum(writer.transactions for writer in writers), replica


def _truncate_and_freeze(connection: Any) -> None:
    """Rows that every snapshot would see, had the table no lock on it."""
    with suppress(psycopg.errors.LockNotAvailable):
        connection.execute("set lock_timeout = '300ms'")
        with connection.transaction():
            connection.execute(f"truncate {TABLES[1]}")
            with connection.cursor().copy(f"copy {TABLES[1]} from stdin with (freeze)") as copy:
                for number in range(500):
                    copy.write_row((900_000_000 + number, "frozen"))


@pytest.mark.parametrize("hanging", [False, True], ids=["plain", "hanging commits"])
def test_a_snapshot_and_the_stream_join_without_a_row_missed_or_twice(hanging, record_property):
    seed = random.SystemRandom().randrange(2**31)
    transactions = 0
    with _server(synchronous_standby_names="") as server:
        for number in range(ROUNDS):
            with fresh_database(server.url) as url:
                _tables(url)
                made, replica = _round(url, seed + number, hanging=hanging)
                transactions += made
                assert (replica.repeated, replica.missed) == ([], []), f"seed {seed + number}"
                for table in TABLES:
                    assert replica.tables[("public", table)] == _rows(url, table), f"seed {seed + number}"
    kind = "hanging commits" if hanging else "plain commits"
    record_property("counts", f"join, {kind} (seed {seed}): {ROUNDS} rounds, {transactions} transactions, missed 0, twice 0")


@pytest.mark.parametrize("has_fence", [True, False])
def test_without_the_fence_a_commit_that_hangs_is_lost(has_fence, monkeypatch):
    """It is streamed, and delivered, and then a snapshot that does not see it takes the table's place."""
    if not has_fence:
        monkeypatch.setattr(snapshot, "_pass_fence", lambda *_: None)
    replica = Replica()
    with _server() as server, psycopg.connect(server.url, autocommit=True) as connection:
        _tables(server.url)
        connection.execute("set synchronous_commit = local")
        with reading(**_options(server.url)) as reader:
            at = follow(reader, replica, reader.initialOffset(), _is_loaded)
            _set_standby(connection, "nobody")
            hangs = Thread(target=_insert, args=(server.url,))
            hangs.start()
            at = follow(reader, replica, at, lambda _: "777777" in replica.tables[("public", "item")])
            connection.execute("select headwater.snapshot_table('hw', 'public.item')")
            at = follow(reader, replica, at, lambda at: at["load"] is not None)
            if has_fence:
                for _ in range(20):
                    at = follow(reader, replica, at, lambda _: True)
                assert at["load"]["snapshot"] is None, "the snapshot waits for the commit that hangs"
            else:
                at = follow(reader, replica, at, _is_loaded)
            _set_standby(connection, "")
            hangs.join()
            follow(reader, replica, at, _is_loaded)
            assert "777777" in _rows(server.url, "item")
            assert ("777777" in replica.tables[("public", "item")]) is has_fence


def _insert(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("insert into item values (777777, 'hangs')")


@pytest.mark.parametrize("has_lock", [True, False])
def test_without_the_lock_a_table_that_is_rewritten_is_read_as_empty(has_lock, monkeypatch):
    if not has_lock:
        monkeypatch.setattr(snapshot, "_lock", _begin_alone)
    replica = Replica()
    with _server() as server, psycopg.connect(server.url, autocommit=True) as connection:
        _tables(server.url)
        with reading(**_options(server.url, lanes=1)) as reader:
            at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] and at["load"]["snapshot"])
            connection.execute("set lock_timeout = '300ms'")
            with suppress(psycopg.errors.LockNotAvailable):
                connection.execute("alter table item alter column v type text using v || '!'")
            follow(reader, replica, at, _is_loaded)
        assert (set(replica.tables[("public", "item")]) == set(_rows(server.url, "item"))) is has_lock


def _begin_alone(connection: Any, _tables: Any) -> dict[Any, str]:
    connection.execute("begin transaction isolation level repeatable read, read only")
    return {}


@pytest.mark.parametrize("has_flush", [True, False])
def test_without_the_flush_a_crash_of_the_server_makes_later_transactions_pass_for_seen(has_flush, database, monkeypatch):
    """State is kept elsewhere here: on the same server, writing it flushes too."""
    if not has_flush:
        monkeypatch.setattr(snapshot, "emit_mark", lambda _connection: None)
    replica = Replica()
    with _server(wal_writer_delay="10s", synchronous_commit="off", full_page_writes="on") as server:
        _tables(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("checkpoint")
        options = _options(server.url, stateUrl=database)
        with reading(**options) as reader, psycopg.connect(server.url, autocommit=True) as connection:
            at = reader.initialOffset()
            for number in range(50):
                connection.execute("insert into item values (%s, 'never flushed')", [500_000 + number])
            at = follow(reader, replica, at, lambda at: at["load"] and at["load"]["complete"])
        server.kill()
        server.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            # What is not flushed is not streamed.
            connection.execute("set synchronous_commit = on")
            for number in range(50):
                connection.execute("insert into item values (%s, 'after the crash')", [600_000 + number])
        with reading(**options) as reader:
            with suppress(AssertionError):
                follow(
                    reader, replica, at, lambda _: replica.tables[("public", "item")] == _rows(server.url, "item"), seconds=8
                )
        assert (replica.tables[("public", "item")] == _rows(server.url, "item")) is has_flush


def test_transaction_ids_that_come_round_are_not_mixed_up(tmp_path_factory):
    """The 32 bits of a streamed id overflow between the snapshot and what follows it."""
    with EmbeddedPostgres(postgres_settings(15)) as server:
        _tables(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("vacuum freeze")
        _set_next_xid(server, 2**32 - 400)
        replica = Replica()
        with reading(**_options(server.url)) as reader, psycopg.connect(server.url, autocommit=True) as connection:
            at = reader.initialOffset()
            number = 0
            while not _is_loaded(at) or number < 800:
                number += 1
                connection.execute("insert into item values (%s, 'new')", [10_000 + number])
                connection.execute("update note set v = %s where id = %s", [f"{number}", number % 3000 + 1])
                if number == 300:
                    connection.execute("select headwater.snapshot_table('hw', 'public.item')")
                end = reader.latestOffset(at, reader.getDefaultReadLimit())
                if end != at:
                    replica.deliver(reader, at, end)
                    at = end
            (last,) = connection.execute("select pg_current_xact_id()::text::bigint").fetchone()
            assert last > 2**32
            follow(reader, replica, at, lambda _: all(replica.tables[("public", t)] == _rows(server.url, t) for t in TABLES))
        assert (replica.repeated, replica.missed) == ([], [])


def _set_next_xid(server: EmbeddedPostgres, xid: int) -> None:
    """As a server has it that has seen many transactions."""
    data = server.directory / "data"
    owner = data.stat()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("checkpoint")
    server.kill()
    (data / "postmaster.pid").unlink(missing_ok=True)
    # Were the oldest one further back, the server itself would take rows for gone that a snapshot still sees.
    ids = ["--epoch=1", f"--next-transaction-id={xid}", f"--oldest-transaction-id={xid - 1000}"]
    command = [str(server.bin_directory / "pg_resetwal"), "--force", *ids, str(data)]
    user, group = (owner.st_uid, owner.st_gid) if os.geteuid() == 0 else (None, None)
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", user=user, group=group)
    assert done.returncode == 0, done.stderr
    segment = data / "pg_xact" / f"{xid // (32 * 32768):04X}"
    if not segment.exists():
        segment.write_bytes(bytes(256 * 1024))
        os.chown(segment, owner.st_uid, owner.st_gid)
    server.start()
