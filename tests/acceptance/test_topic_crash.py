"""Pipelines to a topic and on from it, as processes of their own that are killed while rows are written."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from headwater import topics
from headwater.embedded import EmbeddedPostgres
from headwater.postgres.connect import Connection, connect_sync
from tests.acceptance.running import running
from tests.servers import fresh_database
from tests.topic_pipelines import messages_of, write_pipeline
from tests.waiting import eventually

LONG = os.environ.get("HEADWATER_LONG") == "1"
ROWS = 5000 if LONG else 150
KILLS = 10 if LONG else 2

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(3000 if LONG else 600)]


@pytest.fixture
def source(database: str) -> Iterator[Connection]:
    with closing(connect_sync(database)) as connection:
        topics.prepare_topics(connection)
        topics.create_sync(connection, "changes", partitions=3)
        connection.execute("create table item (id int primary key, number int)")
        yield connection


@pytest.fixture
def target(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        yield url


def count(url: str) -> int:
    with closing(connect_sync(url)) as connection:
        if connection.execute("select to_regclass('message') is null").fetchone() == (True,):
            return 0
        (found,) = connection.execute("select count(*) from message").fetchall()
    return int(found[0])


def change(source: Connection, first: int, last: int) -> None:
    """Two changes of each row, in transactions of their own."""
    for n in range(first, last):
        source.execute("insert into item values (%s, 1)", [n])
        source.execute("update item set number = 2 where id = %s", [n])


def test_runs_that_are_killed_lose_and_repeat_nothing_from_tables_to_a_topic_and_on_to_a_table(
    database: str,
    source: Connection,
    target: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    first = {"url": database, "tables": ["public.item"], "slot": "k_crash", "snapshot": "never", "max_rows": 50}
    write_pipeline(tmp_path / "in", "in", first, {"type": "topic", "topic": "changes"})
    second = {"type": "topic", "url": database, "topic": "changes", "max_rows": 30}
    write_pipeline(tmp_path / "out", "out", second, {"type": "postgres", "url": target, "table": "public.message"})
    step = ROWS // (KILLS + 1)
    with ExitStack() as stack:
        runners = [stack.enter_context(running(tmp_path / name)) for name in ("in", "out")]
        eventually(lambda: source.execute("select from pg_replication_slots where active").fetchall(), seconds=120)
        for kill in range(KILLS + 1):
            change(source, kill * step, (kill + 1) * step)
            if kill < KILLS:
                arrived = 2 * kill * step + random.randrange(step)
                eventually(lambda wanted=arrived: count(target) >= wanted, seconds=120)  # type: ignore[misc]
                for runner in runners:
                    runner.kill()
        written = 2 * step * (KILLS + 1)
        eventually(lambda: count(target) >= written, seconds=240)
        assert [runner.stop() for runner in runners] == [0, 0]
    appended = Counter((one.key, (one.headers or {})["op"]) for one in messages_of(source, "changes"))
    expected = Counter((f'{{"id":{n}}}', op) for n in range(step * (KILLS + 1)) for op in "cu")
    with closing(connect_sync(target)) as connection:
        arrived_rows = Counter(connection.execute("select key, headers ->> 'op' from message").fetchall())
    lost, twice = expected - arrived_rows, arrived_rows - expected
    record_property("counts", f"{written} changes, {KILLS} kills of both runs: lost {lost.total()}, twice {twice.total()}")
    assert appended == expected
    assert (lost, twice) == (Counter(), Counter())
