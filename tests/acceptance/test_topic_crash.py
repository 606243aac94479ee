"""Pipelines to a topic and on from it, as processes that are killed at their failpoints."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater import topics
from headwater.cli.pipeline_file.load import load
from headwater.embedded import EmbeddedPostgres
from headwater.postgres.connect import Connection, connect_sync
from headwater.spark.pipeline import prepare
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import fresh_database
from tests.support.stories.pipeline_process import running
from tests.support.stories.pipeline_thread import pipeline_thread
from tests.support.topics.topic_pipelines import messages_of, write_pipeline
from tests.support.waiting import eventually

# At least six batches of the first pipeline, and ten of the second.
ROWS = 150
# By pipeline: the planner of each, the driver of the first, after which a thread goes on, and a worker of the second.
POINTS = {
    "in": ("source.partitions=kill@2", "sink.written=kill@3"),
    "out": ("source.partitions=kill@3", "postgres_sink.committed=kill@5"),
}

pytestmark = pytest.mark.timeout(600)


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
    spark: SparkSession,
    database: str,
    source: Connection,
    target: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    changes = {"url": database, "tables": ["public.item"], "slot": "k_crash", "snapshot": "never", "max_rows": 50}
    file = write_pipeline(tmp_path / "in", "in", changes, {"type": "topic", "topic": "changes"})
    messages = {"type": "topic", "url": database, "topic": "changes", "max_rows": 30}
    write_pipeline(tmp_path / "out", "out", messages, {"type": "postgres", "url": target, "table": "public.message"})
    points = {name: Failpoints(tmp_path / name, ", ".join(terms)) for name, terms in POINTS.items()}
    prepare(load(file, {}))
    change(source, 0, ROWS)
    with ExitStack() as stack:
        first, second = (stack.enter_context(running(tmp_path / name, points[name].environment)) for name in POINTS)
        first.wait_for_kill(240)
        # The death of the process is the point, and which one goes on is not.
        thread = stack.enter_context(pipeline_thread(spark, load(file, {})))

        def has_arrived() -> bool:
            thread.require_life()
            second.require_life()
            return count(target) >= 2 * ROWS

        eventually(has_arrived, seconds=240)
        thread.stop()
        assert thread.error is None
        assert second.stop() == 0
    assert {name: points[name].fired for name in POINTS} == {
        name: {term.partition("=")[0] for term in terms} for name, terms in POINTS.items()
    }
    appended = [(str(one.key), (one.headers or {})["op"]) for one in messages_of(source, "changes")]
    expected = Counter((f'{{"id":{n}}}', op) for n in range(ROWS) for op in "cu")
    with closing(connect_sync(target)) as connection:
        arrived = Counter(connection.execute("select key, headers ->> 'op' from message").fetchall())
    lost, twice = expected - arrived, arrived - expected
    ops = "".join(op for _, op in sorted(appended, key=lambda entry: entry[0]))
    record_property("counts", f"{2 * ROWS} changes, both runs killed: lost {lost.total()}, twice {twice.total()}")
    assert Counter(appended) == expected
    assert (lost, twice) == (Counter(), Counter())
    assert ops == "cu" * ROWS, "the order of each key"
