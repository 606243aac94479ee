"""Pipelines that are paused, that stand by, and that lose their lease, in this process on real servers."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest
from pyspark.sql import SparkSession

from headwater.embedded import EmbeddedPostgres
from headwater.errors import HeadwaterError, SettingsError
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.replication.slot import create_slot, find_slot
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.spark.lease import Lease
from headwater.spark.pipeline import Pipeline, prepare
from headwater.spark.settings import ChangesSettings, PipelineSettings, PostgresSinkSettings
from headwater.spark.sinks.build import build_sinks
from headwater.spark.state import Phase, fetch_report, pause, resume
from tests.support.servers.embedded import fresh_database
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def target(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        yield url


@pytest.fixture
def source(database: str) -> Iterator[Connection]:
    with closing(connect_sync(database)) as connection:
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
            tables=("public.entry",),
            slot="shop_" + tmp_path.name[-8:].replace("-", "_"),
            publication="shop",
        ),
        sinks=(PostgresSinkSettings(name="replica", url=target),),
        checkpoint=str(tmp_path / "checkpoint"),
        state_url=database,
    )


@pytest.fixture
def running(spark: SparkSession, settings: PipelineSettings) -> Iterator[Callable[[PipelineSettings], Pipeline]]:
    """Starts pipelines that run until the end of the test, in threads."""
    # They have to end before their databases do.
    del settings
    started: list[tuple[Thread, Event]] = []

    def start(settings: PipelineSettings) -> Pipeline:
        stopping = Event()
        pipeline = Pipeline(spark, settings, build_sinks(settings), stopping)
        thread = Thread(target=_run, args=[pipeline])
        thread.start()
        started.append((thread, stopping))
        return pipeline

    yield start
    for thread, stopping in started:
        stopping.set()
        thread.join()


def _run(pipeline: Pipeline) -> None:
    # Its report says how it ended.
    with suppress(HeadwaterError):
        pipeline.run()


@contextmanager
def _transaction(url: str) -> Iterator[None]:
    """One that every slot that is made meanwhile has to wait for."""
    with closing(connect_sync(url)) as connection, connection.transaction():
        connection.execute("select pg_current_xact_id()")
        yield


def _is_half_made(source: Connection, settings: PipelineSettings) -> bool:
    query = "select confirmed_flush_lsn from pg_replication_slots where slot_name = %s"
    return source.execute(query, [settings.source.slot]).fetchall() == [(None,)]


def _is(pipeline: Pipeline, phase: Phase) -> None:
    eventually(lambda: pipeline.report.phase is phase, seconds=90)


def _rows(url: str) -> list[int]:
    """What has arrived; nothing while the run has not made the table yet."""
    with closing(connect_sync(url)) as connection, suppress(psycopg.errors.UndefinedTable):
        return [id for (id,) in connection.execute("select id from entry order by 1").fetchall()]
    return []


def _saved_phase(connection: Connection) -> Phase | None:
    saved = fetch_report(connection, "shop")
    return saved.report.phase if saved is not None else None


def _is_read(source: Connection, settings: PipelineSettings) -> bool:
    query = "select active from pg_replication_slots where slot_name = %s"
    return source.execute(query, [settings.source.slot]).fetchall() == [(True,)]


def test_a_paused_pipeline_stays_paused_when_started_keeps_its_slot_and_its_lease_delivers_nothing_and_goes_on(
    spark, running, settings, source, target
):
    prepare(settings)
    source.execute("insert into entry values (1, 1)")
    pause(source, "shop")
    with pytest.raises(HeadwaterError, match=r"pipeline 'shop' is paused; let it go on with `headwater resume`"):
        Pipeline(spark, settings, build_sinks(settings), Event()).run(once=True)

    pipeline = running(settings)
    _is(pipeline, Phase.PAUSED)
    resume(source, "shop")
    eventually(lambda: _rows(target) == [1], seconds=90)
    _is(pipeline, Phase.RUNNING)

    pause(source, "shop")
    _is(pipeline, Phase.PAUSED)
    eventually(lambda: _saved_phase(source) is Phase.PAUSED)
    eventually(lambda: not _is_read(source, settings))
    source.execute("insert into entry values (2, 2)")
    other = Lease(settings.state_url, "shop")
    assert not other.take()
    other.release()
    assert _rows(target) == [1]

    resume(source, "shop")
    eventually(lambda: _rows(target) == [1, 2], seconds=90)
    _is(pipeline, Phase.RUNNING)


def test_a_second_run_stands_by_and_writes_nothing_over_the_report_and_so_does_a_first_that_loses_its_lease(
    spark, running, settings, source, target
):
    first = running(settings)
    _is(first, Phase.RUNNING)
    with pytest.raises(HeadwaterError, match=r"pipeline 'shop' runs elsewhere \(server process \d+, from 127.0.0.1\)"):
        Pipeline(spark, settings, build_sinks(settings), Event()).run(once=True)

    stopping = Event()
    second = Pipeline(spark, settings, build_sinks(settings), stopping)
    thread = Thread(target=_run, args=[second])
    thread.start()
    try:
        _is(second, Phase.STANDING_BY)
        assert _saved_phase(source) is Phase.RUNNING
        source.execute("insert into entry values (1, 1)")
        eventually(lambda: _rows(target) == [1], seconds=60)
        eventually(lambda: "replica" in first.report.sinks and first.report.sinks["replica"].changes == 1)
        assert second.report.sinks == {}
    finally:
        stopping.set()
        thread.join()

    with _lease_taken_away(source, settings):
        _is(first, Phase.STANDING_BY)
        eventually(lambda: not _is_read(source, settings), seconds=30)
        source.execute("insert into entry values (2, 2)")
        assert _rows(target) == [1]
    eventually(lambda: _rows(target) == [1, 2], seconds=90)


@contextmanager
def _lease_taken_away(source: Connection, settings: PipelineSettings) -> Iterator[None]:
    """Terminate the session that holds the lease until another one has it; release that at the end."""
    taker = Lease(settings.state_url, "shop")
    # Asked again and again while the session ends, so that the run does not get it back first.
    waiting = Thread(target=taker.wait, args=[Event()])
    waiting.start()

    def is_taken() -> bool:
        waiting.join(1.5)
        return taker.is_held

    query = "select pg_terminate_backend(pid, 5000) from pg_locks where locktype = 'advisory' and granted and database = %s"
    oid = source.execute("select oid from pg_database where datname = current_database()").fetchall()[0][0]
    try:
        eventually(lambda: source.execute(query, [oid]).fetchall() and is_taken(), seconds=60)
        yield
    finally:
        taker.release()


def test_a_second_pipeline_on_the_same_slot_is_refused_by_the_name_of_the_first(spark, settings, source, tmp_path):
    prepare(settings)
    other = replace(settings, name="copy", checkpoint=str(tmp_path / "other"))

    with pytest.raises(SettingsError, match=r"slot '.*' is read by pipeline 'shop'"):
        Pipeline(spark, other, build_sinks(other), Event()).run()


def test_a_run_whose_slot_has_to_wait_for_a_transaction_can_be_stopped_and_begins_anew(
    spark, running, settings, source, target
):
    stopping = Event()
    pipeline = Pipeline(spark, settings, build_sinks(settings), stopping)
    thread = Thread(target=pipeline.run)
    with _transaction(settings.source.url):
        thread.start()
        eventually(lambda: _is_half_made(source, settings), seconds=60)
        stopping.set()
        thread.join(30)
        assert not thread.is_alive()
        assert (pipeline.report.phase, pipeline.report.error) == (Phase.STOPPED, None)
        assert find_slot(source, settings.source.slot) is None
    source.execute("insert into entry values (1, 1)")

    running(settings)

    eventually(lambda: _rows(target) == [1], seconds=90)


def test_a_slot_that_a_killed_run_left_half_made_is_waited_for(running, settings, source, target):
    source.execute("create publication shop for table entry")
    with closing(ReplicationConnection(settings.source.url)) as left:
        with _transaction(settings.source.url):
            # The server goes on with it after the process is gone.
            making = Thread(target=create_slot, args=[left, settings.source.slot])
            making.start()
            eventually(lambda: _is_half_made(source, settings), seconds=60)
            pipeline = running(settings)
            _is(pipeline, Phase.RETRYING)
            assert "is making it, until all transactions" in (pipeline.report.error or "")
        making.join()
    source.execute("insert into entry values (1, 1)")

    eventually(lambda: _rows(target) == [1], seconds=90)
    assert pipeline.report.phase is Phase.RUNNING
