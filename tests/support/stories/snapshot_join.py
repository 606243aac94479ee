"""Snapshot and stream joined under writers that roll back, prepare, hang on a standby and truncate, without Spark.

A replica in memory takes what the reader of the source gives, and counts rows that come twice and changes that were missed.
"""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

import psycopg

from tests.support.capture.change_streams import reading
from tests.support.capture.memory_replica import Replica, follow

# ruff: noqa: S608 - the statements are built from names of this module

TABLES = ("item", "note")


@contextmanager
def small_chunks() -> Iterator[None]:
    """Have tables read in chunks of four pages, one a batch."""
    with patch("headwater.capture.pieces.PIECE_PAGES", 4), patch("headwater.spark.sources.loader._PIECES_ALONE", 1):
        yield


def join_options(url: str, **more: object) -> dict[str, object]:
    return {"url": url, "slot": "hw", "tables": "public.item,public.note", "shape": "wire", "snapshot": "initial", **more}


def keyed_rows(url: str, table: str) -> dict[str, dict[str, Any]]:
    with psycopg.connect(url) as connection:
        found = connection.execute(f"select id::text, v from {table}").fetchall()
    return {key: {"id": key, "v": value} for key, value in found}


def is_loaded(at: dict[str, Any]) -> bool:
    return at["load"] is None and not at["dropped"]


class JoinWriter:
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


class HangingCommits:
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
                    set_standby(connection, names)
                    self._stop.wait(0.15)
            set_standby(connection, "")


def set_standby(connection: Any, names: str) -> None:
    connection.execute(f"alter system set synchronous_standby_names = '{names}'")
    connection.execute("select pg_reload_conf()")


def create_join_tables(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set synchronous_commit = local")
        for table in TABLES:
            connection.execute(f"create table {table} (id bigint primary key, v text)")
            connection.execute(f"insert into {table} select g, 'row ' || g from generate_series(1, 3000) g")


@dataclass(frozen=True)
class Join:
    """The seeds of writers, how many lanes there are, which table is loaded again, and what else happens."""

    seeds: tuple[int, ...]
    lanes: int
    # The first chunks are delivered before the reader is restarted.
    delivers_first: bool
    table: str
    truncates: bool

    @classmethod
    def draw(cls, choose: random.Random) -> "Join":
        seeds = tuple(choose.randrange(2**31) for _ in range(4))
        lanes, delivers_first = choose.choice([1, 4]), choose.random() < 0.5
        return cls(seeds, lanes, delivers_first, choose.choice(TABLES), choose.random() < 0.5)

    def __str__(self) -> str:
        extras = ",delivered-first" * self.delivers_first + ",truncated" * self.truncates
        return f"lanes:{self.lanes},again:{self.table}{extras}"


def play_join(url: str, choose: random.Random, *, hanging: bool) -> tuple[int, Replica]:
    """Play a join that is drawn."""
    return play(url, Join.draw(choose), hanging=hanging)


def play(url: str, join: Join, *, hanging: bool) -> tuple[int, Replica]:
    """Load two tables under writers, then one of them again, and follow until all has come; returns the transactions."""
    replica = Replica()
    writers = [JoinWriter(url, number, seed) for number, seed in enumerate(join.seeds, 1)]
    hangs = HangingCommits(url) if hanging else None
    try:
        with reading(**join_options(url, lanes=join.lanes, tables=f"public.{TABLES[0]}")) as reader:
            at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] is not None)
            if join.delivers_first:
                at = follow(reader, replica, at, lambda at: at["load"] is None or at["load"]["delivered"])
        # A new process: whatever was begun is begun anew, and goes on from there.
        with reading(**join_options(url, lanes=join.lanes, tables=f"public.{TABLES[0]}")) as reader:
            at = follow(reader, replica, at, is_loaded)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("set synchronous_commit = local")
                connection.execute(f"select headwater.add_table('hw', 'public.{TABLES[1]}')")
                at = follow(reader, replica, at, lambda _: ("public", TABLES[1]) in replica.tables)
                connection.execute(f"select headwater.snapshot_table('hw', 'public.{join.table}')")
                if join.truncates:
                    _truncate_and_freeze(connection)
                at = follow(reader, replica, at, lambda at: at["load"] is not None)
            at = follow(reader, replica, at, is_loaded)
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
                lambda at: (
                    is_loaded(at) and all(replica.tables[("public", name)] == keyed_rows(url, name) for name in TABLES)
                ),
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
