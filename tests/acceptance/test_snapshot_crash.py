"""Tables that are read as a whole while everything is killed and rows are deleted: the target ends equal to the source.

Killed are the driver, a Python worker of Spark's, the planner that holds the snapshot, and both servers: in the first
reading of all tables, in its redo, while a table is added, and while one is read again.
"""

import os
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.errors import HeadwaterError
from headwater.postgres.connect import Connection, connect_sync
from tests.acceptance.running import execute, fetch, kill, running, settle, write_file
from tests.servers import postgres_settings
from tests.waiting import eventually

LONG = os.environ.get("HEADWATER_LONG") == "1"
LONG_ROUNDS = 20
VICTIMS = ("driver", "worker", "planner", "source", "target")
BIG_ROWS, ADDED_ROWS = 100_000, 3_000

# Pages that are mostly empty: several pieces, and so several batches, of a table that is quick to make and to compare.
TABLE = "create table {} (id int primary key, version bigint not null, note text not null) with (fillfactor = 10)"
FILL = "insert into {} select g, 0, repeat(md5(g::text), 4) from generate_series(1, {}) g"
DELETE = "delete from {} where id = %(id)s"
UPDATE = "update {} set version = %(version)s where id = %(id)s"
INSERT = "insert into {} values (%(id)s, %(version)s, 'new') on conflict do nothing"
SWEEP = "delete from {} where id % 40 = {}"
# Without a key, so that a row which is delivered twice is there twice.
ENTRY = "create table entry (id bigint not null, amount numeric)"


class Writer:
    """Inserts, updates and deletes in all tables until told to stop; a transaction that was cut off is not tried again."""

    def __init__(self, url: str, tables: dict[str, int], seed: int) -> None:
        self.deleted = self._entry = 0
        self._url, self._tables, self._random, self._stop = url, tables, random.Random(seed), Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            try:
                with closing(connect_sync(self._url)) as connection:
                    while not self._stop.wait(0.03):
                        self._transaction(connection)
            except (psycopg.Error, HeadwaterError):
                continue

    def _transaction(self, connection: Connection) -> None:
        choose, deleted = self._random, 0
        with connection.transaction():
            for _ in range(choose.choice([1, 3, 20])):
                table, size = choose.choice(list(self._tables.items()))
                self._entry += 1
                row = {"id": choose.randint(1, size), "version": self._entry}
                statement = choose.choice([DELETE, UPDATE, INSERT])
                touched = connection.execute(statement.format(table).encode(), row).rowcount
                deleted += touched if statement == DELETE else 0
                connection.execute("insert into entry values (%s, %s)", [self._entry, choose.random()])
            deleted += connection.execute("delete from entry where id = %s", [choose.randint(1, self._entry)]).rowcount
        self.deleted += deleted


@dataclass(frozen=True)
class Round:
    """A table that is to be read, and what is killed meanwhile; each victim after the first dies in a redo."""

    what: str
    table: str
    victims: Sequence[str]

    def begin(self, source: str) -> None:
        match self.what:
            case "table add":
                execute(source, TABLE.format(self.table), FILL.format(self.table, ADDED_ROWS))
                execute(source, f"select headwater.add_table('crash', 'public.{self.table}')")
            case "re-snapshot":
                execute(source, f"select headwater.snapshot_table('crash', 'public.{self.table}')")


SHORT = (
    Round("snapshot", "big", ("driver", "planner")),
    Round("table add", "added_1", ("target",)),
    Round("re-snapshot", "big", ("worker", "source")),
)


def _rounds(choose: random.Random) -> Sequence[Round]:
    if not LONG:
        return SHORT
    more = []
    for number in range(2, 2 + LONG_ROUNDS):
        victims = choose.choices(VICTIMS, k=choose.randint(1, 3))
        is_new = choose.random() < 0.4
        more.append(Round("table add" if is_new else "re-snapshot", f"added_{number}" if is_new else "big", victims))
    return (*SHORT, *more)


def _state(source: str, table: str) -> tuple[object, object]:
    """Whether a table is wanted or streaming, and the attempt that was last at it; None for what cannot be known now."""
    try:
        found = fetch(source, "select state, attempt from headwater.pipeline_table where table_name = %s", table)
    except (psycopg.Error, HeadwaterError):
        found = []
    return (found[0][0], found[0][1]) if found else (None, None)


def _is_read(source: str, table: str) -> bool:
    return _state(source, table)[0] == "streaming"


def _wait_for_attempt(source: str, table: str, before: object) -> object:
    """Wait until another attempt is at the table, or it has been read; returns the attempt."""

    def found() -> object:
        state, attempt = _state(source, table)
        return attempt if attempt != before or state == "streaming" else None

    return eventually(found, seconds=90)


@pytest.mark.timeout(3000 if LONG else 300)
@pytest.mark.xdist_group("spark")
def test_tables_read_while_everything_is_killed_and_rows_are_deleted_end_equal_to_the_source(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    choose = random.Random(f"snapshot {LONG}")
    sizes = {"small": 300, "big": BIG_ROWS}
    killed: list[str] = []
    in_time = 0
    with EmbeddedPostgres(postgres_settings(18)) as source, EmbeddedPostgres(postgres_settings(18)) as target:
        execute(source.url, ENTRY, "alter table entry replica identity full")
        for table, size in sizes.items():
            execute(source.url, TABLE.format(table), FILL.format(table, size))
        tables = ["public.small", "public.big", "public.entry"]
        write_file(tmp_path, "crash", source=source.url, target=target.url, tables=tables, lanes=1, max_bytes="1MiB")
        with running(tmp_path) as runner:
            with Writer(source.url, sizes, seed=11) as writer:
                for each in _rounds(choose):
                    _, attempt = _state(source.url, each.table)
                    each.begin(source.url)
                    sizes.setdefault(each.table, ADDED_ROWS)
                    for victim in each.victims:
                        if each.what != "table add":
                            attempt = _wait_for_attempt(source.url, each.table, attempt)
                        Event().wait(choose.random() * 1.5)
                        in_time += not _is_read(source.url, each.table)
                        kill(victim, runner, source, target)
                        killed.append(f"{victim} ({each.what})")
                        # What the attempt that died has loaded, and the next one must not find.
                        execute(source.url, SWEEP.format(each.table, len(killed) % 40))
                    eventually(partial(_is_read, source.url, each.table), seconds=120)
            names = ["entry", *sizes]
            found = settle(runner, source.url, target.url, names)
            assert runner.stop() == 0
        record_property(
            "counts",
            f"snapshot crash: killed {', '.join(killed)}, {in_time} of them in the middle of a reading; {found}, "
            f"{writer.deleted} deleted meanwhile",
        )
        assert found.is_none
        assert in_time > 0
