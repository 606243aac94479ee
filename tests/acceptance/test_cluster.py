"""A pipeline on a Spark cluster whose executors are processes of their own, one of which is killed under load."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from psycopg import sql

from headwater.postgres.connect import connect_sync
from tests.support.servers.embedded import fresh_database
from tests.support.servers.spark_cluster import Cluster, spark_cluster
from tests.support.waiting import eventually

TABLES = ("account", "entry")
SCHEMA = """
create table account (id int primary key, version int not null, note text);
create table entry (id int primary key, account int, amount numeric(12, 2));
insert into account select g, 0, 'new' from generate_series(1, 100) g;
"""


class Load:
    """Small transactions until told to stop."""

    def __init__(self, url: str, seed: int) -> None:
        self._url, self._random, self._stop = url, random.Random(seed), Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        entry = 0
        with closing(connect_sync(self._url)) as connection:
            while not self._stop.wait(0.1):
                with connection.transaction():
                    for _ in range(self._random.choice([1, 3, 12])):
                        entry += 1
                        account = self._random.randint(1, 100)
                        connection.execute("update account set version = version + 1 where id = %s", [account])
                        connection.execute("insert into entry values (%s, %s, %s)", [entry, account, self._random.random()])
                    if self._random.random() < 0.2:
                        connection.execute("delete from entry where account = %s", [account])


@contextmanager
def _pipeline(directory: Path, source: str, target: str, cluster: Cluster) -> Iterator[subprocess.Popen[bytes]]:
    spark = "\n".join(f'"{key}" = """{value}"""' for key, value in cluster.settings.items())
    (directory / "headwater.toml").write_text(
        f"""
name = "cluster"
[source]
url = "{source}"
tables = ["public.account", "public.entry"]
lanes = 2
lane_by = "key"
[[sinks]]
type = "postgres"
url = "{target}"
[spark]
master = "{cluster.url}"
{spark}
""",
        encoding="utf-8",
    )
    runner = subprocess.Popen([sys.executable, "-m", "headwater.cli", "run"], cwd=directory)
    try:
        yield runner
    finally:
        if runner.poll() is None:
            runner.kill()
            runner.wait()


def _rows(url: str, table: str) -> list[tuple[object, ...]]:
    with closing(connect_sync(url)) as connection:
        return connection.execute(sql.SQL("select * from {} order by id").format(sql.Identifier(table))).fetchall()


def _versions(url: str) -> int:
    """How many updates have arrived."""
    with closing(connect_sync(url)) as connection:
        return int(connection.execute("select sum(version) from account").fetchall()[0][0] or 0)


def _has_slot(url: str) -> bool:
    with closing(connect_sync(url)) as connection:
        return connection.execute("select 1 from pg_replication_slots where slot_name = 'cluster'").fetchall() != []


@pytest.mark.timeout(300)
def test_a_pipeline_on_a_cluster_loses_nothing_when_an_executor_is_killed(
    postgres18, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with (
        fresh_database(postgres18.url) as source,
        fresh_database(postgres18.url) as target,
        spark_cluster(tmp_path) as cluster,
    ):
        for url in (source, target):
            with closing(connect_sync(url)) as connection:
                connection.execute(SCHEMA.encode())
        with _pipeline(tmp_path, source, target, cluster) as runner:
            eventually(lambda: _has_slot(source), seconds=120)
            with Load(source, seed=5):
                eventually(lambda: _versions(target) > 50, seconds=120)
                before = eventually(lambda: found if len(found := cluster.executors()) == 2 else None, seconds=60)
                os.kill(before[0], signal.SIGKILL)
                at_kill = _versions(target)
                # The other one goes on, and another takes the place of the one that is gone.
                eventually(lambda: _versions(target) > at_kill + 100, seconds=120)
                after = eventually(lambda: set(cluster.executors()) - set(before), seconds=60)
            eventually(lambda: all(_rows(source, table) == _rows(target, table) for table in TABLES), seconds=120)
            assert runner.poll() is None, f"the run has ended with {runner.returncode}"
            runner.send_signal(signal.SIGTERM)
            assert runner.wait(60) == 0
        counts = {table: len(_rows(target, table)) for table in TABLES}
        lost = sum(len(set(_rows(source, table)) - set(_rows(target, table))) for table in TABLES)
        updates = _versions(target)
    record_property(
        "counts",
        f"cluster of two executors: executor {before[0]} killed, replaced by {sorted(after)}; {updates} updates, "
        f"{counts['entry']} entries, lost {lost}",
    )
    assert lost == 0
