"""`headwater destroy`, `pause` and `resume` against real servers, on what a pipeline leaves there."""

from contextlib import closing
from urllib.parse import urlsplit

import pytest

from headwater.postgres.connect import connect_sync
from headwater.postgres.migrate import Component, migrate
from headwater.spark.lease import Lease
from headwater.spark.state import Phase, Report, claim_slot, save_report
from tests.support.servers.embedded import fresh_database


@pytest.fixture
def target(postgres18):
    with fresh_database(postgres18.url) as url:
        with closing(connect_sync(url)) as connection:
            migrate(connection, Component.of("headwater.spark.sinks.postgres"))
            connection.execute("create table orders (id int primary key)")
            connection.execute("insert into orders values (1)")
            for pipeline in ("shop", "other"):
                connection.execute("insert into headwater.sink_epoch values (%s, 'replica', 1, now())", [pipeline])
                connection.execute(
                    "insert into headwater.sink_position (pipeline, sink, schema_name, table_name, lanes, lane, commit_lsn, "
                    "ordinal, updated_at) values (%s, 'replica', 'public', 'orders', 1, 0, '0/1', 0, now())",
                    [pipeline],
                )
        yield url


def slot_of(url):
    return urlsplit(url).path[1:]


@pytest.fixture
def source(database):
    """A source with what a pipeline makes there, and what another one has."""
    with closing(connect_sync(database)) as connection:
        connection.execute("create table orders (id int primary key)")
        connection.execute("create publication shop for table orders")
        connection.execute("select pg_create_logical_replication_slot(current_database(), 'pgoutput')")
        for part in ("headwater.spark", "headwater.capture.tables"):
            migrate(connection, Component.of(part))
        for pipeline in ("shop", "other"):
            connection.execute(
                "insert into headwater.dead_letter (pipeline, sink, event_id, schema_name, table_name, op, commit_lsn, "
                "ordinal, xid, committed_at, reason, envelope) "
                "values (%s, 'replica', '1', 'public', 'orders', 'c', '0/1', 0, 1, now(), 'bad', '{}')",
                [pipeline],
            )
            connection.execute(
                "insert into headwater.pipeline_table (pipeline, schema_name, table_name, reason) "
                "values (%s, 'public', 'orders', 'new')",
                [pipeline],
            )
        save_report(connection, "other", "other", Report(phase=Phase.STOPPED))
        yield connection


@pytest.fixture
def claimed(source, database):
    """The pipeline has run, and made its publication."""
    save_report(source, "shop", slot_of(database), Report(phase=Phase.STOPPED))
    slot = slot_of(database)
    claim_slot(source, "shop", slot, system_identifier="1", publication="shop", owns_publication=True)


@pytest.fixture
def file(database, target, tmp_path):
    def write(source_url=database, state_url=database):
        path = tmp_path / "shop.toml"
        path.write_text(
            f'name = "shop"\nstate_url = "{state_url}"\n[source]\nurl = "{source_url}"\ntables = ["orders"]\n'
            f'slot = "{slot_of(database)}"\npublication = "shop"\n'
            f'[[sinks]]\ntype = "postgres"\nname = "replica"\nurl = "{target}"\n'
        )
        return str(path)

    return write


@pytest.fixture
def checkpoint(tmp_path):
    place = tmp_path / "checkpoints" / "shop"
    (place / "offsets").mkdir(parents=True)
    (place / "offsets" / "0").write_text("v1")
    (place / "metadata").write_text("{}")
    return place


def left(connection):
    """How many rows each table of ours has, by pipeline."""
    query = (
        "select 'pipeline', name from headwater.pipeline union all select 'letter', pipeline from headwater.dead_letter "
        "union all select 'table', pipeline from headwater.pipeline_table order by 1, 2"
    )
    return connection.execute(query).fetchall()


def left_in(target):
    query = "select pipeline from headwater.sink_epoch union all select pipeline from headwater.sink_position order by 1"
    with closing(connect_sync(target)) as connection:
        return [name for (name,) in connection.execute(query).fetchall()], connection.execute("table orders").fetchall()


OTHERS = [("letter", "other"), ("pipeline", "other"), ("table", "other")]


def exists(connection, what):
    queries = {
        "slot": "select 1 from pg_replication_slots where slot_name = current_database()",
        "publication": "select 1 from pg_publication where pubname = 'shop'",
    }
    return connection.execute(queries[what].encode()).fetchall() != []


def test_all_that_a_pipeline_has_made_goes_and_what_it_has_delivered_stays(
    headwater, source, claimed, file, target, checkpoint
):
    code, output, _ = headwater("destroy", "--yes", "--file", file())

    assert code == 0
    assert not exists(source, "slot")
    assert not exists(source, "publication")
    assert left(source) == OTHERS
    assert left_in(target) == (["other", "other"], [(1,)])
    assert not checkpoint.exists()
    assert output.count("removed ") == 5

    code, output, _ = headwater("destroy", "--yes", "--file", file())
    assert (code, output) == (0, "pipeline shop: there is nothing to remove\n")


def test_without_a_terminal_and_without_yes_nothing_is_removed(headwater, source, claimed, file, target, checkpoint):
    code, _, errors = headwater("destroy", "--file", file())

    assert code == 2
    assert "--yes" in errors.splitlines()[-1]
    assert f"slot {source.info.dbname}" in errors
    assert exists(source, "slot")
    assert exists(source, "publication")
    assert left_in(target)[0] == ["other", "other", "shop", "shop"]
    assert checkpoint.exists()


def test_a_publication_that_was_there_before_the_pipeline_stays(headwater, source, file, database):
    slot = slot_of(database)
    claim_slot(source, "shop", slot, system_identifier="1", publication="shop", owns_publication=False)

    code, output, _ = headwater("destroy", "--yes", "--file", file())

    assert code == 0
    assert exists(source, "publication")
    assert "left publication shop: the pipeline has found it and not made it" in output


def test_a_pipeline_that_runs_is_refused(headwater, source, claimed, file, database, checkpoint):
    lease = Lease(database, "shop")
    assert lease.take()
    try:
        code, _, errors = headwater("destroy", "--yes", "--file", file())
    finally:
        lease.release()

    assert code == 1
    assert "pipeline 'shop' runs (server process " in errors
    assert exists(source, "slot")
    assert checkpoint.exists()


def test_a_source_that_is_gone_keeps_nothing_else_from_being_removed(headwater, source, claimed, file, target, checkpoint):
    code, _, errors = headwater("destroy", "--yes", "--file", file("host=127.0.0.1 port=1 dbname=x"))

    assert code == 1
    assert f"left are slot {source.info.dbname} and its publication: no connection to PostgreSQL" in errors
    assert left(source) == OTHERS
    assert left_in(target)[0] == ["other", "other"]
    assert not checkpoint.exists()


def test_what_is_not_spark_s_in_a_checkpoint_directory_stays(headwater, source, claimed, file, checkpoint):
    (checkpoint / "notes.txt").write_text("mine")

    headwater("destroy", "--yes", "--file", file())

    assert [path.name for path in checkpoint.iterdir()] == ["notes.txt"]


def test_rows_that_were_being_loaded_into_a_target_go(headwater, source, claimed, file, target):
    with closing(connect_sync(target)) as connection:
        connection.execute("create table headwater.aside_1 (id int)")
        connection.execute(
            "insert into headwater.sink_load (pipeline, sink, attempt, schema_name, table_name, aside) "
            "values ('shop', 'replica', 'a', 'public', 'orders', 'aside_1')"
        )
        headwater("destroy", "--yes", "--file", file())
        assert connection.execute("select to_regclass('headwater.aside_1')").fetchall() == [(None,)]
        assert connection.execute("select * from headwater.sink_load").fetchall() == []


def test_a_pipeline_is_paused_and_goes_on_and_status_says_so(headwater, source, claimed, file):
    path = file()
    code, output, _ = headwater("pause", "--file", path)
    assert code == 0
    assert "pipeline shop: paused since " in output
    assert "paused since" in headwater("status", "--file", path)[1]

    code, output, _ = headwater("resume", "--file", path)
    assert code == 0
    assert "pipeline shop: goes on, paused since " in output
    assert "paused since" not in headwater("status", "--file", path)[1]
    assert headwater("resume", "--file", path)[1] == "pipeline shop: was not paused\n"


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_pipeline_that_never_ran_is_neither_paused_nor_resumed(headwater, database, target, file, command):
    code, _, errors = headwater(command, "--file", file())

    assert code == 1
    assert errors.startswith("error: pipeline 'shop' has never run")
