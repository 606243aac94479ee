"""`headwater demo` as a newcomer runs it, on a server of its own and on a given one."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import psutil
import psycopg
import pytest

from headwater.cli.demo import follow
from headwater.cli.demo.stage import staged
from headwater.embedded import state_directory
from headwater.embedded.process import Process
from headwater.errors import SourceError
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.rows import decode_rows
from tests.waiting import eventually

TABLES = {"cart", "customer", "document", "orders", "reading"}


@contextmanager
def started(*arguments):
    """The program in a process of its own; killed at the end of the block, unless it has ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "PG"))}
    command = [sys.executable, "-m", "headwater.cli", "demo", *arguments]
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        try:
            yield program
        finally:
            program.kill()


def wait_for_captured_changes(program):
    for line in program.stderr:
        if "changes captured" in line:
            return
    pytest.fail("the demo ended before it captured anything")


def servers_of(program):
    """The embedded servers that the program started, by the records in the state directory."""
    records = (Process.read(path) for path in (state_directory() / "servers").glob("*/process"))
    children = {child.pid for child in psutil.Process(program.pid).children()}
    return [record for record in records if record is not None and record.pid in children]


def left_behind(url):
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(
            """select 'schema ' || nspname from pg_namespace where nspname like 'headwater%'
                union all select 'publication ' || pubname from pg_publication
                union all select 'slot ' || slot_name from pg_replication_slots where database = current_database()"""
        ).fetchall()


@pytest.mark.timeout(90)
def test_without_anything_configured_the_demo_captures_all_and_finds_it_equal():
    with started("--seconds", "2", "--json") as program:
        output, errors = program.communicate()

    assert program.returncode == 0, errors
    report = json.loads(output)
    assert (report["equal"], report["differences"]) == (True, [])
    assert report["server"]["is_private"]
    assert set(report["tables"]) == TABLES
    assert report["tables"]["reading"]["rows"]["equal"] == 100_000
    assert report["largest_transaction"]["changes"] == 100_000
    assert report["largest_transaction"]["per_second"] > 0
    assert report["transactions"]["captured"] == report["transactions"]["written"] > 0
    assert report["rolled_back"]["rows"] > 5_000
    assert report["unchanged_values_kept"] > 0
    assert report["wal_bytes"]["written"] > report["wal_bytes"]["unconfirmed"]
    assert 0 < report["latency_ms"]["median"] <= report["latency_ms"]["p99"]
    captured = {(table, kind) for table, found in report["tables"].items() for kind, n in found["captured"].items() if n}
    assert captured == {
        *((table, kind) for table in TABLES - {"reading"} for kind in ("inserts", "updates", "deletes")),
        ("customer", "key_changes"),
        ("cart", "truncates"),
        ("reading", "inserts"),
    }
    assert "Comparing tables and replicas" in errors


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_in_the_middle_stops_the_demo_and_its_server(number, code):
    with started("--seconds", "60") as program:
        wait_for_captured_changes(program)
        (server,) = servers_of(program)
        assert server.is_running()

        program.send_signal(number)
        output, errors = program.communicate()

    assert (program.returncode, output) == (code, "")
    assert "stopped before the end" in errors
    assert "Traceback" not in errors
    assert not server.is_running()


@pytest.mark.timeout(60)
def test_on_a_server_of_the_user_it_captures_all_and_leaves_nothing_behind(any_database, headwater):
    code, output, errors = headwater("demo", "--url", any_database, "--seconds", "1", "--json")

    assert code == 0, errors
    report = json.loads(output)
    assert report["equal"]
    assert not report["server"]["is_private"]
    assert eventually(lambda: left_behind(any_database) == [])


@pytest.mark.timeout(60)
def test_a_signal_leaves_nothing_behind_on_a_server_of_the_user(database):
    with started("--seconds", "60", "--url", database) as program:
        wait_for_captured_changes(program)
        program.send_signal(signal.SIGTERM)
        _, errors = program.communicate()

    assert program.returncode == 0, errors
    assert eventually(lambda: left_behind(database) == [])


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_the_slot_waits_for_a_running_transaction_ends_the_demo(database, number, code):
    waiting = "select from pg_stat_activity where query like 'CREATE_REPLICATION_SLOT%' and wait_event_type = 'Lock'"
    with connect_sync(database) as running, connect_sync(database) as connection:
        running.execute("begin; select pg_current_xact_id()")
        with started("--seconds", "60", "--url", database) as program:
            eventually(lambda: connection.execute(waiting).fetchall())
            program.send_signal(number)
            _, errors = program.communicate(timeout=15)
        assert program.returncode == code, errors
        assert "Traceback" not in errors
        running.execute("rollback")

    assert eventually(lambda: left_behind(database) == [])


@pytest.mark.timeout(60)
def test_changes_that_are_lost_on_the_way_are_noticed_and_named(database, headwater, monkeypatch):
    def lose_the_deletes(batch, types):
        return (change for change in decode_rows(batch, types) if getattr(change, "op", None) != "d")

    monkeypatch.setattr(follow, "decode_rows", lose_the_deletes)
    code, output, _ = headwater("demo", "--url", database, "--seconds", "1", "--json")

    report = json.loads(output)
    assert (code, report["equal"]) == (1, False)
    assert report["tables"]["customer"]["rows"]["extra"] > 0
    assert any(
        line.startswith("customer: ") and "deletes were written, 0 captured" in line for line in report["differences"]
    )
    assert any("is in the replica only" in line for line in report["differences"])


@pytest.mark.parametrize("kind", ["schema", "publication"])
def test_an_object_of_that_name_that_is_not_ours_is_refused_and_left_alone(database, headwater, kind):
    with connect_sync(database) as connection:
        connection.execute(f"create {kind} headwater_demo".encode())

    code, output, errors = headwater("demo", "--url", database)

    assert (code, output) == (1, "")
    assert f"error: {kind} headwater_demo in" in errors
    assert "was not made by this demo" in errors
    assert left_behind(database) == [(f"{kind} headwater_demo",)]


def test_what_a_killed_demo_left_behind_is_removed_by_the_next(database):
    with connect_sync(database) as connection:
        connection.execute("create schema headwater_demo")
        connection.execute("create table headwater_demo.cart (id int)")
        connection.execute("comment on schema headwater_demo is 'made by headwater demo'")

        with staged(connection, database) as tables:
            assert {table.name for table in tables} == TABLES

    assert left_behind(database) == []


def test_a_second_demo_in_the_same_database_is_refused_and_does_not_touch_the_first(database):
    with connect_sync(database) as connection, connect_sync(database) as other, staged(connection, database):
        with pytest.raises(SourceError, match="another demo runs"), staged(other, database):
            pytest.fail("two demos at once")
        assert connection.execute("select count(*) from headwater_demo.reading").fetchone() == (0,)


def test_a_role_that_may_not_create_is_told_what_to_grant(database):
    with connect_sync(database) as connection:
        connection.execute("set role pg_monitor")

        with pytest.raises(SourceError, match="grant create on database"), staged(connection, database):
            pytest.fail("created")
