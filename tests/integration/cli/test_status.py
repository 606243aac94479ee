"""`headwater status` against a real server: what a run has written, beside what its slot shows."""

import json
from contextlib import closing
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from headwater.model import Position
from headwater.postgres.connect import connect_sync
from headwater.postgres.migrate import Component, migrate
from headwater.postgres.replication.slot import find_slot
from headwater.spark.lease import Lease
from headwater.spark.state import Phase, Report, SinkReport, TableReport, fetch_report, fetch_server_position, save_report


@pytest.fixture
def connection(database):
    with closing(connect_sync(database)) as opened:
        yield opened


@pytest.fixture
def status(headwater, database, tmp_path, monkeypatch):
    """Run the command on a pipeline file; gives the exit code and what was printed."""
    file = tmp_path / "shop.toml"
    file.write_text(
        'name = "shop"\n[source]\nurl = "${HEADWATER_URL}"\ntables = ["orders"]\nslot = "' + slot_of(database) + '"\n'
        '[[sinks]]\ntype = "noop"\n'
    )
    monkeypatch.setenv("HEADWATER_URL", database)

    def call(*arguments):
        code, output, errors = headwater("status", "--file", str(file), *arguments)
        assert errors == ""
        return code, output

    return call


def slot_of(database):
    """Slots are the server's, and tests run side by side: the database's name makes one of its own."""
    return urlsplit(database).path[1:]


def make_slot(connection):
    connection.execute("select pg_create_logical_replication_slot(current_database(), 'pgoutput')")


def save(connection, report):
    migrate(connection, Component.of("headwater.spark"))
    save_report(connection, "shop", connection.info.dbname, report)


def test_a_report_comes_back_as_it_was_written(connection):
    now = fetch_server_position(connection)
    report = Report(
        phase=Phase.RUNNING,
        position=Position(now.flush_lsn, 3),
        committed_at=now.now,
        rows=12,
        rows_per_second=3.5,
        batch_seconds=0.25,
        tables={"public.orders": TableReport(12, now.now), 'public."Odd One"': TableReport()},
        sinks={"replica": SinkReport(10, 1, 1, 0.2)},
        error="an error with \0 in it",
    )
    save(connection, report)

    saved = fetch_report(connection, "shop")

    assert saved is not None
    assert (saved.slot, saved.report.error) == (connection.info.dbname, "an error with \\0 in it")
    assert {name: getattr(saved.report, name) for name in ("position", "committed_at", "rows", "tables", "sinks")} == {
        name: getattr(report, name) for name in ("position", "committed_at", "rows", "tables", "sinks")
    }
    assert (saved.report.rows_per_second, saved.report.batch_seconds) == (3.5, 0.25)
    assert fetch_report(connection, "another") is None


def test_a_new_run_keeps_the_position_of_the_last_until_it_has_its_own(connection):
    now = fetch_server_position(connection)
    save(connection, Report(phase=Phase.RUNNING, position=Position(now.flush_lsn, 3), committed_at=now.now))
    first = fetch_report(connection, "shop")

    save(connection, Report(phase=Phase.STARTING))
    second = fetch_report(connection, "shop")
    save(connection, Report(phase=Phase.RUNNING))
    third = fetch_report(connection, "shop")

    assert first is not None and second is not None and third is not None
    assert second.report.position == third.report.position == Position(now.flush_lsn, 3)
    assert second.report.committed_at == now.now
    assert first.started_at < second.started_at == third.started_at
    assert second.updated_at < third.updated_at


def test_a_pipeline_that_never_ran_says_so_and_changes_nothing(connection, status):
    code, output = status()

    assert code == 0
    assert "phase     never ran" in output
    assert "pipeline shop has never run; start it with `headwater run`" in output
    assert connection.execute("select to_regnamespace('headwater')").fetchone() == (None,)

    found = json.loads(status("--json")[1])
    assert (found["phase"], found["slot"]["exists"], found["lag_bytes"]) == (None, False, None)


def test_the_lag_is_what_the_server_has_made_durable_and_the_slot_not_confirmed(connection, status):
    make_slot(connection)
    committed_at = fetch_server_position(connection).now - timedelta(minutes=5)
    slot = find_slot(connection, connection.info.dbname)
    assert slot is not None and slot.confirmed_flush_lsn is not None
    save(connection, Report(phase=Phase.STOPPED, position=Position(slot.confirmed_flush_lsn, 0), committed_at=committed_at))
    connection.execute("create table orders as select generate_series(1, 10000) as id")
    before = fetch_server_position(connection)

    found = json.loads(status("--json")[1])

    assert found["lag_bytes"] >= before.flush_lsn - slot.confirmed_flush_lsn > 100_000
    assert found["lag_seconds"] >= 300
    assert found["slot"]["confirmed_flush_lsn"] == str(slot.confirmed_flush_lsn)
    assert found["slot"]["retained_bytes"] >= found["lag_bytes"]
    assert (found["phase"], found["stale"], found["slot"]["active"]) == ("stopped", False, False)


def test_a_run_that_has_the_pipeline_is_not_stale_while_it_leaves_the_slot_alone(connection, status, database):
    make_slot(connection)
    save(connection, Report(phase=Phase.RUNNING, position=Position(fetch_server_position(connection).flush_lsn, 0)))
    lease = Lease(database, "shop")
    assert lease.take()
    try:
        assert not json.loads(status("--json")[1])["stale"]
    finally:
        lease.release()
    assert json.loads(status("--json")[1])["stale"]


def test_a_run_that_was_killed_and_a_slot_that_is_gone_are_said_plainly(connection, status):
    make_slot(connection)
    position = Position(fetch_server_position(connection).flush_lsn, 0)
    counted = {"public.orders": TableReport(7)}
    save(connection, Report(phase=Phase.RUNNING, position=position, tables=counted, sinks={"noop": SinkReport(7)}))

    _, output = status()
    assert "running, stale" in output
    assert "nobody reads its slot" in output
    assert "public.orders  7" in output

    connection.execute("select pg_drop_replication_slot(current_database())")
    _, output = status()
    assert f"slot {connection.info.dbname} is gone" in output


def test_a_slot_that_a_starting_run_has_yet_to_make_is_not_called_lost(connection, status):
    save(connection, Report(phase=Phase.STARTING))

    _, output = status()

    assert f"slot {connection.info.dbname} is not there yet" in output
    assert "is gone" not in output


def test_a_server_that_is_not_there_is_an_error(headwater, tmp_path):
    file = tmp_path / "shop.toml"
    file.write_text(
        'name = "shop"\n[source]\nurl = "host=127.0.0.1 port=1 dbname=x"\ntables = ["orders"]\n[[sinks]]\ntype = "noop"\n'
    )

    code, output, errors = headwater("status", "--file", str(file))

    assert (code, output) == (1, "")
    assert errors.startswith("error: no connection to PostgreSQL at ")


def test_without_a_file_the_way_to_one_is_told(headwater, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    code, _, errors = headwater("status")

    assert code == 2
    assert errors == "error: headwater.toml does not exist; write one with `headwater init`, or name another with --file\n"
