"""A pipeline whose parts are killed at random points of a load: the target ends equal to the source, row by row.

Killed are the driver, a Python worker of Spark's, the planner that reads the slot, and both servers.
"""

import os
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.errors import HeadwaterError
from headwater.postgres.connect import Connection, connect_sync
from tests.acceptance.running import kill, rows, running, write_file
from tests.servers import postgres_settings
from tests.waiting import eventually

LONG = os.environ.get("HEADWATER_LONG") == "1"
ROUNDS = 20 if LONG else 3
VICTIMS = ("driver", "worker", "planner", "source", "target")
# In the short form each lane rule has three of them.
SHORT = {"table": ("driver", "source", "target"), "key": ("worker", "planner", "driver")}

TABLES = """
create table account (id int primary key, version bigint not null, note text, large text);
create table entry (id bigint, account int, amount numeric(12, 2));
alter table entry replica identity full;
create table tag (a int, b text, v int, primary key (a, b));
insert into account select g, 0, 'new', repeat(md5(g::text), 300) from generate_series(1, 200) g;
"""
# Fires for the sink too, which writes as a replica.
AUDIT = """
create table audit (at bigint generated always as identity, id int, version bigint);
create function note() returns trigger language plpgsql as $$
begin
    insert into audit (id, version) values (new.id, new.version);
    return null;
end $$;
create trigger note after insert or update on account for each row execute function note();
alter table account enable always trigger note;
"""


class Load:
    """Transactions of many kinds until told to stop; one that the server's death cut off is not tried again."""

    def __init__(self, url: str, seed: int) -> None:
        self._url, self._random, self._stop = url, random.Random(seed), Event()
        self._thread = Thread(target=self._run)
        self._version = self._entry = 0

    def __enter__(self) -> None:
        self._thread.start()

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
        choose = self._random
        with connection.transaction():
            for _ in range(choose.choice([1, 1, 3, 20])):
                self._version += 1
                account = choose.randint(1, 200)
                connection.execute("update account set version = %s where id = %s", [self._version, account])
                self._entry += 1
                connection.execute("insert into entry values (%s, %s, %s)", [self._entry, account, choose.random()])
            match choose.randint(1, 12):
                case 1:
                    connection.execute("delete from account where id = %s", [account])
                    connection.execute("insert into account values (%s, %s, 'again', 'small')", [account, self._version])
                case 2:
                    connection.execute("insert into tag values (%s, 'x', 0) on conflict do nothing", [choose.randint(1, 50)])
                    connection.execute(
                        "update tag set a = a + 100 where a < 100 and b = 'x' and a = %s", [choose.randint(1, 50)]
                    )
                case 3:
                    connection.execute("delete from tag where a > 140")
                case 4:
                    connection.execute("update account set large = repeat(%s, 3000) where id = %s", ["ab", account])
                case 5:
                    connection.execute(
                        "insert into entry select g, 0, 1 from generate_series(%s::bigint, %s::bigint) g",
                        [10**9 + self._entry * 1000, 10**9 + self._entry * 1000 + 999],
                    )
                case 6:
                    connection.execute("truncate tag")


def _delivered(target: str) -> int:
    """How many entries have arrived; -1 while the target does not answer."""
    try:
        with closing(connect_sync(target)) as connection:
            return int(connection.execute("select count(*) from entry").fetchall()[0][0])
    except (psycopg.Error, HeadwaterError):
        return -1


@pytest.mark.timeout(3000 if LONG else 300)
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("lane_by", ["table", "key"])
def test_a_pipeline_whose_parts_are_killed_under_load_ends_with_the_target_equal_to_the_source(
    lane_by: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    choose = random.Random(f"{lane_by} {ROUNDS}")
    with EmbeddedPostgres(postgres_settings(18)) as source, EmbeddedPostgres(postgres_settings(18)) as target:
        for server in (source, target):
            with closing(connect_sync(server.url)) as connection:
                connection.execute(TABLES.encode())
        with closing(connect_sync(target.url)) as connection:
            connection.execute(AUDIT.encode())
        write_file(
            tmp_path,
            "crash",
            source=source.url,
            target=target.url,
            tables=["public.account", "public.entry", "public.tag"],
            lane_by=lane_by,
            max_bytes="1MiB",
        )
        killed: list[str] = []
        with running(tmp_path) as runner:
            eventually(lambda: _has_slot(source.url), seconds=90)
            with Load(source.url, seed=7):
                for number in range(ROUNDS):
                    _wait_for_more(target.url)
                    Event().wait(choose.random())
                    victims = VICTIMS if LONG else SHORT[lane_by]
                    killed.append(victims[number % len(victims)])
                    kill(killed[-1], runner, source, target)
            tables = ("account", "entry", "tag")
            eventually(lambda: all(rows(source.url, table) == rows(target.url, table) for table in tables), seconds=120)
            runner.require_life()
            assert runner.stop() == 0
        source_rows = {table: rows(source.url, table) for table in tables}
        target_rows = {table: rows(target.url, table) for table in tables}
        lost = sum(len(set(source_rows[table]) - set(target_rows[table])) for table in tables)
        twice = sum(len(target_rows[table]) - len(set(target_rows[table])) for table in tables)
        backwards = _steps_back(target.url)
        record_property(
            "counts",
            f"pipeline crash, lanes by {lane_by}: killed {', '.join(killed)}; {len(source_rows['entry'])} entries, "
            f"lost {lost}, duplicated {twice}, versions out of order {backwards}",
        )
        assert source_rows == target_rows
        assert (lost, twice, backwards) == (0, 0, 0)


def _wait_for_more(target: str) -> None:
    before = _delivered(target)
    eventually(lambda: _delivered(target) > before, seconds=120)


def _has_slot(url: str) -> bool:
    with closing(connect_sync(url)) as connection:
        return connection.execute("select 1 from pg_replication_slots where slot_name = 'crash'").fetchall() != []


def _steps_back(url: str) -> int:
    """How often an account got a lower version than it had at the target."""
    with closing(connect_sync(url)) as connection:
        return int(
            connection.execute(
                "select count(*) from (select version < lag(version) over (partition by id order by at) as back from audit) "
                "as step where back"
            ).fetchall()[0][0]
        )
