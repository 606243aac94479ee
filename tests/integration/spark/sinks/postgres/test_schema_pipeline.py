"""A whole pipeline on Spark whose source is altered while it is written to."""

from contextlib import closing
from threading import Event, Thread

import pytest

from headwater.errors import HeadwaterError
from headwater.postgres.connect import connect_sync
from headwater.spark.pipeline import Pipeline
from headwater.spark.settings import ChangesSettings, LaneRule, PipelineSettings, PostgresSinkSettings
from headwater.spark.sinks.build import build_sinks
from tests.support.sinks.altered_source import contents, types
from tests.support.sinks.postgres_sink_run import execute
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

DDL = (
    "alter table item add column c int not null default 7",
    "alter table item rename column v to value",
    "alter table item alter column n type text using 'n' || n",
    "alter table item add column late timestamptz default clock_timestamp()",
    "alter table item drop column gone",
)


@pytest.mark.parametrize("lane_by", list(LaneRule))
def test_a_table_that_is_altered_while_it_is_written_to_ends_equal_to_the_source(spark, database, target, tmp_path, lane_by):
    execute(
        database,
        "create table item (id int primary key, v text, n int, gone text, stamp int default 0)",
        "insert into item select g, 'old ' || g, g, 'gone' from generate_series(1, 500) g",
    )
    settings = PipelineSettings(
        name="shop",
        source=ChangesSettings(
            url=database, tables=("public.item",), slot="shop_altered", publication="shop", lane_by=lane_by
        ),
        sinks=(PostgresSinkSettings(name="replica", url=target),),
        checkpoint=str(tmp_path / "checkpoint"),
        state_url=database,
    )
    stopping, failures = Event(), []
    pipeline = Pipeline(spark, settings, build_sinks(settings), stopping)

    def run() -> None:
        try:
            pipeline.run()
        except HeadwaterError as exc:
            failures.append(exc)

    thread = Thread(target=run)
    thread.start()
    try:
        with closing(connect_sync(database)) as source, closing(connect_sync(target)) as copy:

            def arrived(stamp: int) -> bool:
                assert not failures
                (there,) = copy.execute("select to_regclass('item') is not null").fetchone() or (False,)
                return there and bool(copy.execute("select from item where stamp = %s", [stamp]).fetchall())

            for number, ddl in enumerate(("select", *DDL), start=1):
                with source.transaction():
                    source.execute("update item set stamp = %s where id %% 10 = 1", [number])
                source.execute(ddl.encode())
                source.execute("insert into item (id) select %s::int + g from generate_series(1, 99) g", [number * 1000])
                source.execute("delete from item where id %% 50 = %s", [number])
                source.execute("update item set stamp = %s where id = 11", [number])
                if number % 2:
                    eventually(lambda number=number: arrived(number), seconds=90)
        eventually(lambda: failures or contents(target, "item") == contents(database, "item"), seconds=90)
    finally:
        stopping.set()
        thread.join()
    assert failures == []
    assert contents(target, "item") == contents(database, "item")
    assert types(target, "item") == types(database, "item")
