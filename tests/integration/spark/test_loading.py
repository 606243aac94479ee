"""A pipeline on Spark that reads tables as a whole and then follows them, to every kind of sink."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event

import psycopg
import pytest
from pyspark.sql import SparkSession

from headwater.embedded import EmbeddedPostgres
from headwater.postgres.connect import Connection, connect_sync
from headwater.spark.pipeline import Pipeline
from headwater.spark.settings import (
    ChangesSettings,
    NoopSinkSettings,
    ParquetSinkSettings,
    PipelineSettings,
    PostgresSinkSettings,
    TransformSettings,
)
from headwater.spark.sinks.build import build_sinks
from tests.support.servers.embedded import fresh_database
from tests.support.stories.pipeline_thread import pipeline_thread
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def target(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        yield url


@pytest.fixture
def source(database: str) -> Iterator[Connection]:
    with closing(connect_sync(database)) as connection:
        connection.execute(
            "create table item (id int primary key, name text, price numeric(9, 2), at timestamptz, tags text[])"
        )
        connection.execute(
            "insert into item select g, 'item ' || g, g * 1.5, '2026-01-01'::timestamptz + g * interval '1 s', "
            "array['a', g::text] from generate_series(1, 20000) g"
        )
        connection.execute("create table entry (id int, amount numeric)")
        connection.execute("alter table entry replica identity full")
        connection.execute("insert into entry select g % 7, g from generate_series(1, 500) g")
        yield connection


@pytest.fixture
def settings(database: str, target: str, tmp_path: Path, source: Connection) -> PipelineSettings:
    del source
    return PipelineSettings(
        name="shop",
        source=ChangesSettings(
            url=database, tables=("public.item", "public.entry"), slot=f"load_{abs(hash(tmp_path))}", publication="shop"
        ),
        sinks=(PostgresSinkSettings(name="replica", url=target),),
        checkpoint=str(tmp_path / "checkpoint"),
        state_url=database,
    )


def _run_once(spark: SparkSession, settings: PipelineSettings) -> Pipeline:
    pipeline = Pipeline(spark, settings, build_sinks(settings), Event())
    pipeline.run(once=True)
    return pipeline


def _rows(url: str, query: str) -> list[tuple[object, ...]]:
    with closing(connect_sync(url)) as connection:
        return connection.execute(query.encode()).fetchall()


def _same(one: str, other: str, *tables: str) -> bool:
    return all(_rows(one, f"table {t} order by 1, 2") == _rows(other, f"table {t} order by 1, 2") for t in tables)


def test_a_first_run_delivers_what_is_there_once_and_the_next_one_only_what_changed_to_every_sink(
    spark, settings, source, target, tmp_path
):
    lake = ParquetSinkSettings(name="lake", path=str(tmp_path / "lake"))
    settings = replace(settings, sinks=(*settings.sinks, lake, NoopSinkSettings(name="none")))
    report = _run_once(spark, settings).report
    assert _same(settings.source.url, target, "item", "entry")
    assert report.rows == 20500
    assert {name: sink.changes for name, sink in report.sinks.items()} == {"replica": 20500, "lake": 20500, "none": 20500}
    written = spark.read.parquet(str(tmp_path / "lake" / "public.item"))
    assert written.count() == written.select("id").distinct().count() == 20000

    source.execute("update item set name = 'new' where id <= 10")
    source.execute("delete from entry where id = 3")
    report = _run_once(spark, settings).report
    assert _same(settings.source.url, target, "item", "entry")
    assert report.rows == 10 + 72
    assert {name: sink.changes for name, sink in report.sinks.items()} == {"replica": 82, "lake": 82, "none": 82}
    assert spark.read.parquet(str(tmp_path / "lake" / "public.item")).count() == 20000 + 10


def test_a_transform_sees_the_rows_that_are_there(spark, settings, target):
    transform = TransformSettings(
        hash=("public.item.name",), salt="s", filter="op <> 'r' or get_json_object(after, '$.id') <= 100"
    )
    _run_once(spark, replace(settings, transform=transform))
    assert _rows(target, "select count(*), min(length(name)) from item") == [(100, 64)]


def test_a_table_is_added_to_a_running_pipeline_and_followed(spark, settings, source, target, database):
    source.execute("create table late (id int primary key, v text)")
    source.execute("insert into late select g, 'late' from generate_series(1, 3000) g")
    with pipeline_thread(spark, settings) as running:
        eventually(lambda: _is_equal(database, target, "item"), seconds=90)
        source.execute("select headwater.add_table('shop', 'public.late')")
        source.execute("insert into item values (100000, 'meanwhile')")
        eventually(lambda: _is_equal(database, target, "late"), seconds=60)
        source.execute("update late set v = 'followed' where id < 5")
        source.execute("select headwater.snapshot_table('shop', 'public.item')")
        source.execute("delete from item where id < 100")
        eventually(lambda: _is_equal(database, target, "item", "late"), seconds=60)
    assert running.error is None
    assert _same(database, target, "item", "late")


def _is_equal(one: str, other: str, *tables: str) -> bool:
    """As `_same`, but cheap enough to be asked again and again: the rows stay at the servers."""
    digest = "select count(*), md5(string_agg(t::text, ',' order by t::text)) from {} as t"
    try:
        return all(_rows(one, digest.format(table)) == _rows(other, digest.format(table)) for table in tables)
    except psycopg.errors.UndefinedTable:
        return False
