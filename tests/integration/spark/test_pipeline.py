"""Whole pipelines in this process, on real servers: what is delivered, confirmed, retried and refused."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headwater.embedded import EmbeddedPostgres
from headwater.errors import HeadwaterError, PositionError, SinkError, SinkFenced, SourceError, TransformError
from headwater.model import Lsn
from headwater.postgres.connect import Connection, connect_sync
from headwater.spark.pipeline import Pipeline, prepare
from headwater.spark.settings import (
    ChangesSettings,
    ParquetSinkSettings,
    PipelineSettings,
    PostgresSinkSettings,
    SnapshotRule,
    TransformSettings,
)
from headwater.spark.shape import Shape
from headwater.spark.sinks import Span, Written
from headwater.spark.sinks.build import build_sinks
from headwater.spark.sinks.postgres import PostgresSink
from headwater.spark.sources import register
from headwater.spark.state import Phase, SavedReport, fetch_report
from tests.support.servers.embedded import fresh_database
from tests.support.servers.tcp_proxy import Proxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def target(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        yield url


@pytest.fixture
def source(database: str) -> Iterator[Connection]:
    """A source with two tables: one with a key and one without."""
    with closing(connect_sync(database)) as connection:
        connection.execute("create table item (id int primary key, name text, large text)")
        connection.execute("create table entry (id int, amount numeric)")
        connection.execute("alter table entry replica identity full")
        yield connection


@pytest.fixture
def settings(database: str, target: str, tmp_path: Path, source: Connection) -> PipelineSettings:
    del source
    return PipelineSettings(
        name="shop",
        source=ChangesSettings(
            url=database,
            tables=("public.item", "public.entry"),
            slot="shop_" + tmp_path.name[-8:].replace("-", "_"),
            publication="shop",
            snapshot=SnapshotRule.NEVER,
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


def _saved(settings: PipelineSettings) -> SavedReport:
    with closing(connect_sync(settings.state_url)) as connection:
        saved = fetch_report(connection, settings.name)
    assert saved is not None
    return saved


def _confirmed(connection: Connection, settings: PipelineSettings) -> Lsn:
    query = "select confirmed_flush_lsn from pg_replication_slots where slot_name = %s"
    found: Lsn = connection.execute(query, [settings.source.slot]).fetchall()[0][0]
    return found


def test_runs_once_deliver_what_is_new_and_leave_the_slot_at_its_end_also_after_the_loss_of_a_checkpoint_directory(
    spark, settings, source, target
):
    prepare(settings)
    source.execute("insert into item select g, 'name ' || g, repeat('x', 9000) from generate_series(1, 100) g")
    source.execute("update item set name = 'new' where id <= 10")
    source.execute("update item set id = -id where id = 11")
    source.execute("delete from item where id = 12")
    source.execute("insert into entry select g % 5, g from generate_series(1, 50) g")
    pipeline = _run_once(spark, settings)
    assert _rows(target, "select * from item order by id") == _rows(settings.source.url, "select * from item order by id")
    assert _rows(target, "select * from entry order by 2") == _rows(settings.source.url, "select * from entry order by 2")
    report = pipeline.report
    assert report.position is not None
    assert report.position.commit_lsn <= _confirmed(source, settings)
    assert (report.phase, report.rows) == (Phase.STOPPED, 162)
    assert {name: table.changes for name, table in report.tables.items()} == {"public.entry": 50, "public.item": 112}
    assert report.sinks["replica"].changes == 162
    saved = _saved(settings)
    assert (saved.report.phase, saved.report.rows, saved.report.position) == (Phase.STOPPED, 162, report.position)

    source.execute("insert into entry values (51, 51)")
    assert _run_once(spark, settings).report.rows == 1
    assert _rows(target, "select count(*), count(distinct amount) from entry") == [(51, 51)]

    shutil.rmtree(settings.checkpoint)
    source.execute("insert into entry select g, g from generate_series(52, 100) g")
    _run_once(spark, settings)
    assert _rows(target, "select count(*), count(distinct amount) from entry") == [(100, 100)]


class _FailsAfter:
    """A sink that lets another one write, and then fails: what was written comes again."""

    name = "fails"

    def __init__(self) -> None:
        self.calls = 0

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        self.calls += 1
        raise SinkError(self.name, "no room")


def test_when_one_sink_fails_the_batch_comes_again_and_the_others_leave_out_what_they_have(spark, settings, source, target):
    prepare(settings)
    source.execute("insert into entry select g, g from generate_series(1, 100) g")
    before = _confirmed(source, settings)
    fails = _FailsAfter()
    with pytest.raises(SinkError, match="no room"):
        Pipeline(spark, settings, [*build_sinks(settings), fails], Event()).run(once=True)
    assert _rows(target, "select count(*) from entry") == [(100,)]
    assert _confirmed(source, settings) == before
    assert _saved(settings).report.error == "sink 'fails': no room"
    shutil.rmtree(settings.checkpoint)
    source.execute("insert into entry select g, g from generate_series(101, 110) g")
    report = _run_once(spark, settings).report
    assert (report.sinks["replica"].changes, report.sinks["replica"].skipped) == (10, 100)
    assert _rows(target, "select count(*), count(distinct id) from entry") == [(110, 110)]


def test_a_transform_filters_masks_and_hashes_on_the_way_to_every_sink(spark, settings, source, target, tmp_path):
    transform = TransformSettings(
        mask={"public.item.large": "***"},
        hash=("public.item.name",),
        salt="s",
        filter="`table` = 'item'",
        sql="select * from changes where op <> 'd'",
    )
    lake = ParquetSinkSettings(name="lake", path=str(tmp_path / "lake"))
    settings = replace(settings, transform=transform, sinks=(*settings.sinks, lake))
    prepare(settings)
    source.execute("insert into item values (1, 'ann', 'secret'), (2, null, null)")
    source.execute("insert into entry values (1, 1)")
    source.execute("delete from item where id = 1")
    _run_once(spark, settings)
    rows = _rows(target, "select id, name, large from item order by id")
    assert rows == [(1, sha256(b"sann").hexdigest(), "***"), (2, None, None)]
    assert _rows(target, "select count(*) from entry") == [(0,)]
    written = spark.read.parquet(str(tmp_path / "lake" / "changes")).collect()
    assert sorted(row["op"] for row in written) == ["c", "c"]
    assert not any("secret" in str(row) or "ann" in str(row) for row in written)


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (TransformSettings(sql="selec * from changes"), "transform.sql"),
        (TransformSettings(sql="select op from changes"), "commit_lsn"),
        (TransformSettings(filter="nonsense > 1"), "nonsense"),
        (TransformSettings(function="no_such_module:f"), "no_such_module"),
    ],
)
def test_a_transform_that_cannot_work_stops_the_run_and_confirms_nothing(spark, settings, source, transform, said):
    prepare(settings)
    source.execute("insert into item values (1, 'a', 'b')")
    before = _confirmed(source, settings)
    with pytest.raises(TransformError, match=said):
        _run_once(spark, replace(settings, transform=transform))
    assert _confirmed(source, settings) == before


def test_a_checkpoint_of_another_slot_is_refused_and_the_slot_of_a_pipeline_that_has_run_is_never_made_anew(
    spark, settings, source
):
    prepare(settings)
    source.execute("insert into item values (1, 'a', 'b')")
    _run_once(spark, settings)
    other = replace(settings, name="other", source=replace(settings.source, slot=settings.source.slot + "_b"))
    with pytest.raises(PositionError, match="checkpoint directory is of slot"):
        _run_once(spark, other)
    # The planner that reads it ends a moment after the query.
    query = "select 1 from pg_replication_slots where active and slot_name = %s"
    eventually(lambda: source.execute(query, [settings.source.slot]).fetchall() == [])
    source.execute("select pg_drop_replication_slot(%s)", [settings.source.slot])
    with pytest.raises(
        SourceError, match=r"does not exist; .*; to have all tables read .*, set on_slot_loss = \"resnapshot\""
    ):
        _run_once(spark, settings)
    assert source.execute("select 1 from pg_replication_slots where slot_name = %s", [settings.source.slot]).fetchall() == []


def _run(pipeline: Pipeline) -> None:
    # Its report says how it ended.
    with suppress(HeadwaterError):
        pipeline.run()


@pytest.fixture
def running(spark: SparkSession, settings: PipelineSettings) -> Iterator[Callable[..., Pipeline]]:
    """Starts pipelines that run until the end of the test, in threads."""
    # They have to end before their databases do.
    del settings
    started: list[tuple[Thread, Event]] = []

    def start(settings: PipelineSettings, patience: timedelta = timedelta(seconds=30)) -> Pipeline:
        stopping = Event()
        (sink,) = build_sinks(settings)
        assert isinstance(sink, PostgresSink)
        # How long a task waits before it says that its target is away.
        sink._address = replace(sink._address, patience=patience)
        pipeline = Pipeline(spark, settings, [sink], stopping)
        thread = Thread(target=_run, args=[pipeline])
        thread.start()
        started.append((thread, stopping))
        return pipeline

    yield start
    for thread, stopping in started:
        stopping.set()
        thread.join()


def test_a_target_that_is_away_is_waited_for_and_nothing_is_confirmed_meanwhile(running, settings, source, target):
    with Proxy(target) as proxy:
        through = replace(settings, sinks=(PostgresSinkSettings(name="replica", url=proxy.url),))
        pipeline = running(through, timedelta(seconds=1))
        eventually(lambda: pipeline.report.phase is Phase.RUNNING, seconds=60)
        source.execute("insert into entry values (1, 1)")
        eventually(lambda: _rows(target, "select id from entry") == [(1,)], seconds=60)
        proxy.refuse = True
        proxy.cut()
        source.execute("insert into entry values (2, 2)")
        written = source.execute("select pg_current_wal_insert_lsn()").fetchall()[0][0]
        eventually(lambda: pipeline.report.phase is Phase.RETRYING, seconds=120)
        assert "replica" in (pipeline.report.error or "")
        assert _confirmed(source, settings) < written
        assert _rows(target, "select id from entry") == [(1,)]
        proxy.refuse = False
        eventually(lambda: _rows(target, "select id from entry order by 1") == [(1,), (2,)], seconds=120)


def test_a_later_run_fences_the_earlier_one(spark, running, settings, source, target):
    pipeline = running(settings)
    eventually(lambda: pipeline.report.phase is Phase.RUNNING, seconds=60)
    (sink,) = build_sinks(settings)
    sink.open()
    sink.close()
    source.execute("insert into entry values (1, 1)")
    eventually(lambda: pipeline.report.phase is Phase.FAILED, seconds=60)
    assert "later run" in (pipeline.report.error or "") or SinkFenced.__name__ in (pipeline.report.error or "")
    assert _rows(target, "select count(*) from entry") == [(0,)]


def test_progress_that_is_committed_before_it_is_delivered_cannot_be_asked_for(spark, settings, source):
    """The source confirms what Spark has committed, so that must not run ahead of the sinks."""
    prepare(settings)
    register(spark)
    options = {"url": settings.source.url, "slot": settings.source.slot, "publication": "shop"}
    changes = spark.readStream.format("headwater.changes").options(**options).load()
    writer = changes.writeStream.foreachBatch(lambda _batch, _number: None).option("checkpointLocation", settings.checkpoint)
    with pytest.raises(PySparkException, match=r"(?i)async progress tracking"):
        writer.option("asyncProgressTrackingEnabled", True).start()
