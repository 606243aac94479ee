"""A slot that is lost: by default the pipeline ends and says so; told to read its tables again, it makes good for the gap.

What was deleted while nothing was kept is the hard part: no change tells of it, and a row that stays at the target is a
ghost.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from headwater import failpoints
from headwater.embedded import EmbeddedPostgres
from headwater.errors import SourceError
from headwater.postgres.connect import connect_sync
from headwater.spark.pipeline import Pipeline
from headwater.spark.settings import ChangesSettings, PipelineSettings, PostgresSinkSettings, SlotLossRule
from headwater.spark.sinks.build import build_sinks
from tests.support.capture.slot_drop import drop_free_slot
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import fresh_database, postgres_settings
from tests.support.stories.pipeline_process import (
    are_equal,
    difference,
    execute,
    fetch,
    rows,
    run_once,
    settle,
    write_file,
)
from tests.support.stories.pipeline_thread import pipeline_thread
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

NAMES = ("item", "entry")
TABLES = (
    "create table item (id int primary key, v text not null)",
    # Without a key, so that a row which is delivered twice is there twice.
    "create table entry (id int, v text)",
    "alter table entry replica identity full",
)
ROWS = (
    "insert into item select g, 'first' from generate_series(1, 2000) g",
    "insert into entry select g, 'first' from generate_series(1, 2000) g",
)
# In the slot when it is lost, and written when there is none.
BEFORE = (
    "delete from item where id % 10 = 1",
    "update item set v = 'before' where id % 10 = 2",
    "delete from entry where id % 10 = 1",
    "insert into item values (3001, 'before')",
)
WITHOUT = (
    "delete from item where id % 10 = 3",
    "update item set v = 'without' where id % 10 = 4",
    "delete from entry where id % 10 = 3",
    "insert into entry values (3002, 'without')",
)
AFTER = (
    "delete from item where id % 10 = 5",
    "update item set id = id + 10000 where id % 10 = 6",
    "insert into entry values (3003, 'after')",
)
SWEEP = ("delete from item where id % 100 = {}", "delete from entry where id % 100 = {}")
MAKE_SLOT = "select pg_create_logical_replication_slot('lossy', 'pgoutput')"
# The points of a slot's renewal, in their order.
RENEWAL = ("slot.renewal_requested", "slot.renewal_recorded", "slot.renewal_created")
# What the error of the default policy ends with.
POLICY = 'to have all tables read as a whole again, set on_slot_loss = "resnapshot"'


@pytest.fixture
def source(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        execute(url, *TABLES, *ROWS)
        yield url


@pytest.fixture
def target(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        yield url


def _drop_slot(source: str) -> None:
    with closing(connect_sync(source)) as connection:
        drop_free_slot(connection, "lossy")


@contextmanager
def _lost(how: str, source: str) -> Iterator[str]:
    """Lose the slot, with changes before and after; gives the URL of the source from then on."""
    execute(source, *BEFORE)
    match how:
        case "dropped":
            _drop_slot(source)
            execute(source, *WITHOUT)
            yield source
        case "made anew":
            _drop_slot(source)
            execute(source, *WITHOUT, MAKE_SLOT)
            yield source
        case "another server":
            # Its WAL is far behind that of the first one, so its positions are all lower than what was delivered.
            with EmbeddedPostgres(postgres_settings(18)) as other:
                execute(other.url, *TABLES, *ROWS, *BEFORE, *WITHOUT)
                yield other.url


def _settings(directory: Path, source: str, target: str, rule: SlotLossRule) -> PipelineSettings:
    """The state is kept apart from the source, as it must be when that may be replaced."""
    tables = tuple(f"public.{name}" for name in NAMES)
    return PipelineSettings(
        name="lossy",
        source=ChangesSettings(url=source, tables=tables, slot="lossy", publication="lossy", on_slot_loss=rule),
        sinks=(PostgresSinkSettings(name="postgres", url=target),),
        checkpoint=str(directory / "checkpoints" / "lossy"),
        state_url=target,
    )


def _write(directory: Path, source: str, target: str, **keys: object) -> None:
    """The same pipeline as a file."""
    tables = [f"public.{name}" for name in NAMES]
    write_file(directory, "lossy", source=source, target=target, top=f'state_url = "{target}"', tables=tables, **keys)


def _pipeline(spark: SparkSession, settings: PipelineSettings) -> Pipeline:
    return Pipeline(spark, settings, build_sinks(settings), Event())


def _target_rows(target: str) -> list[list[tuple[object, ...]]]:
    return [rows(target, name) for name in NAMES]


@pytest.mark.parametrize("how", ["dropped", "made anew", "another server"])
def test_a_slot_lost_while_stopped_ends_the_run_by_default_and_is_made_good_for_where_that_is_asked_for(
    how: str,
    spark: SparkSession,
    source: str,
    target: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    execute(source, "select pg_logical_emit_message(false, 'noise', repeat('x', 50000)) from generate_series(1, 200)")
    _pipeline(spark, _settings(tmp_path, source, target, SlotLossRule.FAIL)).run(once=True)
    assert are_equal(source, target, NAMES)
    before = _target_rows(target)
    with _lost(how, source) as now:
        with pytest.raises(SourceError, match="'lossy'") as refused:
            _pipeline(spark, _settings(tmp_path, now, target, SlotLossRule.FAIL)).run(once=True)
        assert str(refused.value).endswith(POLICY)
        assert _target_rows(target) == before
        settings = _settings(tmp_path, now, target, SlotLossRule.RESNAPSHOT)
        _pipeline(spark, settings).run(once=True)
        assert are_equal(now, target, NAMES)
        (attempts,) = _attempts(target)
        execute(now, *AFTER)
        _pipeline(spark, settings).run(once=True)
        found = difference(now, target, NAMES)
    record_property("counts", f"slot lost while stopped ({how}): {found}")
    assert found.is_none
    # What came after it came by the stream.
    assert _attempts(target) == [attempts]


def _attempts(target: str) -> list[tuple[object, ...]]:
    return fetch(target, "select array_agg(attempt order by table_name) from headwater.pipeline_table")


def test_a_process_whose_slot_is_lost_ends_with_one_clear_error_or_recovers_also_when_that_is_killed(
    spark: SparkSession, source: str, target: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    _pipeline(spark, _settings(tmp_path, source, target, SlotLossRule.FAIL)).run(once=True)
    before = _target_rows(target)
    execute(source, *BEFORE)
    _drop_slot(source)
    execute(source, *WITHOUT)
    _write(tmp_path, source, target)
    ended = run_once(tmp_path)
    assert ended.code == 1
    errors = [line for line in ended.said.splitlines() if "'lossy'" in line]
    assert len(errors) == 1, ended.said
    assert errors[0].endswith(POLICY)
    assert "Traceback" not in ended.said
    assert _target_rows(target) == before
    assert fetch(source, "select from pg_replication_slots where slot_name = 'lossy'") == []

    points = Failpoints(tmp_path, ", ".join(f"{name}=kill" for name in RENEWAL))
    _write(tmp_path, source, target, on_slot_loss="resnapshot")
    for number in range(len(RENEWAL)):
        assert run_once(tmp_path, points.environment).code == -signal.SIGKILL
        assert points.fired == set(RENEWAL[: number + 1])
    execute(source, *AFTER)
    # The death of the process is the point, and which one goes on is not.
    _pipeline(spark, _settings(tmp_path, source, target, SlotLossRule.RESNAPSHOT)).run(once=True)
    found = difference(source, target, NAMES)
    record_property("counts", f"slot lost, recovery killed at {', '.join(RENEWAL)}: {found}")
    assert found.is_none


@contextmanager
def _blocked(target: str) -> Iterator[None]:
    """Nothing can be written to the target: what comes is not confirmed, and the slot stays behind."""
    with closing(connect_sync(target)) as connection, connection.transaction():
        connection.execute("lock table item in access exclusive mode")
        yield


def _invalidate(source: str) -> None:
    """Write WAL until the server gives the slot up."""

    def look() -> bool:
        execute(source, "select pg_logical_emit_message(false, 'noise', 'x')", "select pg_switch_wal()", "checkpoint")
        found = fetch(source, "select wal_status from pg_replication_slots where slot_name = 'lossy'")
        return found == [("lost",)]

    eventually(look, seconds=60)


def _generation(target: str) -> object:
    return fetch(target, "select generation from headwater.pipeline_slot")[0][0]


def _has_tables(target: str) -> bool:
    return fetch(target, "select to_regclass('item') is not null and to_regclass('entry') is not null") == [(True,)]


def test_a_slot_invalidated_while_running_is_made_good_for_also_when_the_recovery_fails_half_way(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    small = postgres_settings(18, max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="64MB")
    with EmbeddedPostgres(small) as server, EmbeddedPostgres(postgres_settings(18)) as other:
        source, target = server.url, other.url
        execute(source, *TABLES, *ROWS)
        with pipeline_thread(spark, _settings(tmp_path, source, target, SlotLossRule.FAIL)) as failing:
            eventually(lambda: _has_tables(target) and are_equal(source, target, NAMES), seconds=90)
            with _blocked(target):
                execute(source, *BEFORE)
                _invalidate(source)
                execute(source, *WITHOUT)
            error = str(failing.wait_for_error())
        assert error.endswith(POLICY)
        assert "'lossy' was invalidated" in error
        assert fetch(target, "select from item where v = 'without'") == []

        with pipeline_thread(spark, _settings(tmp_path, source, target, SlotLossRule.RESNAPSHOT)) as running:
            assert settle(running, source, target, NAMES).is_none
            # In this process, which makes the slot anew: a first attempt ends at the one point, a second at the other.
            armed = failpoints.parse(", ".join(("slot.renewal_requested=error", "slot.renewal_recorded=error")))
            monkeypatch.setattr(failpoints, "_ARMED", armed)
            lost = _generation(target)
            with _blocked(target):
                execute(source, *AFTER)
                _invalidate(source)
                execute(source, *(statement.format(99) for statement in SWEEP))
            eventually(lambda: _generation(target) != lost, seconds=90)
            execute(source, *(statement.format(98) for statement in SWEEP))
            assert settle(running, source, target, NAMES).is_none
            assert all(point.hits > point.hit for point in armed.values())
            execute(source, "delete from item where id = 8", "insert into entry values (3004, 'later')")
            found = settle(running, source, target, NAMES)
        record_property("counts", f"slot invalidated while running, recovery cut off at {' and '.join(armed)}: {found}")
        assert found.is_none


@pytest.mark.parametrize("kind", ["plugin", "database"])
def test_a_slot_that_is_not_ours_is_refused_whatever_the_policy_and_stays(
    kind: str, spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    # The programs of the wheel have no other plugin.
    server: EmbeddedPostgres = request.getfixturevalue("postgres15" if kind == "plugin" else "postgres18")
    with fresh_database(server.url) as source, fresh_database(server.url) as target:
        execute(source, *TABLES, *ROWS)
        _pipeline(spark, _settings(tmp_path, source, target, SlotLossRule.FAIL)).run(once=True)
        before = _target_rows(target)
        execute(source, *BEFORE)
        _drop_slot(source)
        execute(source, *WITHOUT)
        if kind == "plugin":
            execute(source, "select pg_create_logical_replication_slot('lossy', 'test_decoding')")
            wanted = "slot 'lossy' speaks test_decoding"
        else:
            execute(target, MAKE_SLOT)
            wanted = f"slot 'lossy' belongs to database '{urlsplit(target).path.removeprefix('/')}'"
        slot = _slot(source)
        for rule in SlotLossRule:
            with pytest.raises(SourceError, match=wanted):
                _pipeline(spark, _settings(tmp_path, source, target, rule)).run(once=True)
            assert _slot(source) == slot
            assert _target_rows(target) == before


def _slot(source: str) -> tuple[object, ...]:
    return fetch(source, "select plugin, database, confirmed_flush_lsn from pg_replication_slots where slot_name = 'lossy'")[
        0
    ]
