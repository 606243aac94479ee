"""`headwater demo` as a newcomer runs it, on a server of its own and on a given one."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import contextmanager
from threading import Event

import psutil
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headwater.cli.demo import traffic, watch
from headwater.cli.demo.stage import staged
from headwater.cli.demo.view import LineView
from headwater.embedded import state_directory
from headwater.embedded.process import Process
from headwater.errors import SourceError
from headwater.postgres.connect import connect_sync
from tests.support.servers.embedded import fresh_database
from tests.support.servers.shared_spark import commands_on
from tests.support.waiting import eventually

TABLES = {"cart", "customer", "document", "orders", "reading"}
TARGET = "headwater_demo_target"

# One worker for all that starts Spark, which takes its time.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def temporary(tmp_path):
    """The directory for all files that a demo makes and removes again."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    return directory


@contextmanager
def started(temporary, *arguments, is_newcomer=False):
    """The program in a process of its own; killed at the end of the block, unless it has ended.

    A newcomer has the Java of the machine, or that of the product, and no other.
    """
    unset = ("HEADWATER_", "PG", "JAVA_HOME") if is_newcomer else ("HEADWATER_", "PG")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    environment |= {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
    command = [sys.executable, "-m", "headwater.cli", "demo", *arguments]
    with subprocess.Popen(
        command,
        env=environment,
        cwd=temporary,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A group of its own, as a terminal gives to a command.
        process_group=0,
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def wait_for(program, words):
    """Read what the program says until the words come."""
    for line in program.stderr:
        if words in line:
            return
    pytest.fail(f"the demo ended before it said {words!r}")


def at_step(monkeypatch, words, act):
    """Have a demo in this process wait for an act when it has said the words."""

    def step(self, text):
        say(self, text)
        if text == words:
            act()

    say = LineView.step
    monkeypatch.setattr(LineView, "step", step)


def children(program):
    return psutil.Process(program.pid).children(recursive=True)


def alive(processes):
    """Those that still run; what nobody has taken notice of any more has ended."""
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def running_servers():
    """The embedded servers that this process has started and that run, by the records in the state directory."""
    records = (Process.read(path) for path in (state_directory() / "servers").glob("*/process"))
    ours = {child.pid for child in psutil.Process().children(recursive=True)}
    return {record for record in records if record is not None and record.pid in ours and record.is_running()}


def left_behind(url):
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            """select 'schema ' || nspname from pg_namespace where nspname like 'headwater%'
                union all select 'publication ' || pubname from pg_publication
                union all select 'slot ' || slot_name from pg_replication_slots where database = current_database()
                union all select 'schema ' || nspname from pg_namespace where nspname like '\\_creek%'
                union all select 'database ' || datname from pg_database where datname like 'headwater%'"""
        )
        return [name for (name,) in found]


def execute(url, *statements):
    with connect_sync(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_without_anything_configured_the_demo_delivers_all_and_finds_it_equal(temporary):
    with started(temporary, "--seconds", "2", "--json", is_newcomer=True) as program:
        wait_for(program, "mixed traffic")
        running = children(program)
        output, errors = program.communicate()

    assert program.returncode == 0, errors
    report = json.loads(output)
    assert (report["equal"], report["differences"]) == (True, [])
    assert report["server"]["is_private"]
    assert set(report["tables"]) == TABLES
    for table in report["tables"].values():
        rows = table["rows"]
        assert (rows["missing"], rows["extra"], rows["different"]) == (0, 0, 0)
        assert rows["equal"] > 0
        assert table["delivered"] == sum(table["written"].values())
    assert report["tables"]["reading"]["rows"]["equal"] == 100_000
    assert report["large_transaction"]["rows"] == 100_000
    assert report["applied"] == report["changes"] > 100_000
    assert report["rolled_back"]["rows"] > 5_000
    events = report["events"]
    assert (events["lost"], events["repeated"]) == (0, 0)
    assert events["arrived"] == events["committed"] > events["while_away"] > 0
    assert events["rolled_back"] > 0
    assert {group["name"] for group in report["topic"]["groups"]} == {"billing", "shipping"}
    for group in report["topic"]["groups"]:
        assert (group["lost"], group["repeated"], group["out_of_order"]) == (0, 0, 0)
        assert group["members"].keys() == {"first", "second"}
        assert sum(group["members"].values()) == report["topic"]["appended"] >= 10_000
    assert report["wal_bytes"]["written"] > report["wal_bytes"]["unconfirmed"]
    assert 0 < report["lag_seconds"]["median"] <= report["lag_seconds"]["p99"] <= report["lag_seconds"]["largest"]
    written = {(table, kind) for table, found in report["tables"].items() for kind, n in found["written"].items() if n}
    assert written == {
        *((table, kind) for table in TABLES - {"reading"} for kind in ("inserts", "updates", "deletes")),
        ("customer", "key_changes"),
        ("cart", "truncates"),
        ("reading", "inserts"),
    }
    # Nothing but our own lines: Spark, its Java and its workers are silent.
    assert [line for line in errors.splitlines() if not re.match(r" *\d+\.\d s  ", line)] == []
    assert "Comparing source and target" in errors
    assert alive(running) == []
    assert list(temporary.iterdir()) == []


def test_on_a_server_of_the_user_rows_that_are_lost_or_made_up_are_named_and_nothing_is_left_behind(
    spark, postgres15, headwater, monkeypatch
):
    """All but those rows is delivered, on the oldest server that is supported."""
    # A tenth of what a newcomer sees: the first test has that.
    for module in (traffic, watch):
        monkeypatch.setattr(module, "LOAD_ROWS", 10_000)
    lose_one = """create function lose() returns trigger language plpgsql as $$ begin return null; end $$;
                  create trigger lose before insert on headwater_demo.reading for each row when (new.id = 77)
                  execute function lose();
                  alter table headwater_demo.reading enable always trigger lose"""
    make_one_up = "insert into headwater_demo.customer values ('nobody@example.com', 'Nobody', 1, null, now())"
    with fresh_database(postgres15.url) as url:
        at_step(
            monkeypatch,
            "Delivering a first batch",
            lambda: execute(make_conninfo(url, dbname=TARGET), lose_one, make_one_up),
        )
        with commands_on(spark):
            code, output, errors = headwater("demo", "--url", url, "--seconds", "1", "--json")

        report = json.loads(output)
        assert (code, report["equal"], report["server"]["is_private"]) == (1, False, False), errors
        assert report["tables"]["reading"]["rows"] == {"equal": 9_999, "missing": 1, "extra": 0, "different": 0}
        assert report["tables"]["customer"]["rows"]["extra"] == 1
        assert sorted(report["differences"]) == [
            "customer email='nobody@example.com' is in the target only",
            "reading id=77 is missing in the target",
        ]
        assert left_behind(url) == []


def test_sigterm_while_spark_starts_stops_the_demo_and_its_server(spark, headwater, temporary, monkeypatch):
    before, servers = running_servers(), list[Process]()

    def start(*_arguments, **_settings):
        """Have the signal come while this has not returned."""
        servers.extend(running_servers() - before)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.wait(60)
        return spark

    stopping = Event()
    at_step(monkeypatch, "Stopping Spark", stopping.set)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with commands_on(spark), monkeypatch.context() as patched:
        patched.setattr("headwater.spark.session.build_session", start)
        code, output, errors = headwater("demo", "--seconds", "60")

    assert (code, output) == (0, "")
    assert "stopped before the end" in errors
    assert "Traceback" not in errors
    assert len(servers) == 2
    assert [server.is_running() for server in servers] == [False, False]
    assert list(temporary.iterdir()) == []


def test_ctrl_c_while_changes_are_delivered_leaves_nothing_behind(temporary, database):
    with started(temporary, "--seconds", "60", "--url", database) as program:
        wait_for(program, "mixed traffic")
        running = children(program)
        # From a terminal it goes to Java and its kin as well.
        os.killpg(program.pid, signal.SIGINT)
        output, errors = program.communicate()

    assert (program.returncode, output) == (130, ""), errors
    assert "Traceback" not in errors
    assert running
    assert alive(running) == []
    assert left_behind(database) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_the_slot_waits_for_a_running_transaction_ends_the_demo(temporary, database, number, code):
    waiting = "select from pg_stat_activity where query like 'CREATE_REPLICATION_SLOT%' and wait_event_type = 'Lock'"
    with connect_sync(database) as running, connect_sync(database) as connection:
        running.execute("begin; select pg_current_xact_id()")
        with started(temporary, "--seconds", "60", "--url", database) as program:
            eventually(lambda: connection.execute(waiting).fetchall(), seconds=60)
            program.send_signal(number)
            _, errors = program.communicate(timeout=60)
        assert program.returncode == code, errors
        assert "Traceback" not in errors
        assert left_behind(database) == []
        running.execute("rollback")

    assert left_behind(database) == []


@pytest.mark.parametrize(
    ("name", "create", "drop"),
    [
        ("schema headwater_demo", "create schema headwater_demo", ""),
        ("publication headwater_demo", "create publication headwater_demo", ""),
        ("slot headwater_demo", "select pg_create_logical_replication_slot('headwater_demo', 'pgoutput')", ""),
        (f"database {TARGET}", f"create database {TARGET}", f"drop database {TARGET}"),
    ],
)
def test_what_bears_a_name_of_ours_and_is_not_ours_is_refused_and_left_alone(database, headwater, name, create, drop):
    execute(database, create)
    try:
        code, output, errors = headwater("demo", "--url", database)

        assert (code, output) == (1, "")
        assert f"error: {name} in" in errors
        assert "was not made by this demo" in errors
        assert left_behind(database) == [name]
    finally:
        execute(database, *([drop] if drop else []))


def test_what_a_killed_demo_left_behind_is_removed_by_the_next(database):
    execute(
        database,
        "create schema headwater_demo",
        "create table headwater_demo.cart (id int)",
        "comment on schema headwater_demo is 'made by headwater demo'",
        "select pg_create_logical_replication_slot('headwater_demo', 'pgoutput')",
        f"create database {TARGET}",
        f"comment on database {TARGET} is 'made by headwater demo'",
    )

    with connect_sync(database) as connection, staged(connection, database) as stage:
        assert {table.name for table in stage.tables} == TABLES

    assert left_behind(database) == []


def test_a_second_demo_in_the_same_database_is_refused_and_does_not_touch_the_first(database):
    with connect_sync(database) as connection, connect_sync(database) as other, staged(connection, database):
        with pytest.raises(SourceError, match="another demo runs"), staged(other, database):
            pytest.fail("two demos at once")
        assert connection.execute("select count(*) from headwater_demo.reading").fetchone() == (0,)


def test_a_second_demo_in_another_database_of_the_server_does_not_take_the_target_of_the_first(database, postgres18):
    with fresh_database(postgres18.url) as elsewhere, connect_sync(database) as connection:
        with connect_sync(elsewhere) as other, staged(connection, database) as stage:
            with pytest.raises(SourceError), staged(other, elsewhere):
                pytest.fail("two demos with one target")
            assert stage.target.execute("select 1").fetchone() == (1,)


def test_a_role_that_may_not_create_a_schema_is_told_what_to_grant(database):
    with connect_sync(database) as connection:
        connection.execute("set role pg_monitor")

        with pytest.raises(SourceError, match="grant create on database"), staged(connection, database):
            pytest.fail("created")


def test_a_role_that_may_not_create_a_database_is_told_what_to_grant(database):
    role = f"demo_{uuid.uuid4().hex}"
    execute(
        database,
        f"create role {role} login replication password 'secret'",
        f"do $$ begin execute format('grant create on database %I to {role}', current_database()); end $$",
    )
    url = make_conninfo(database, user=role, password="secret")
    try:
        with connect_sync(url) as connection:
            with pytest.raises(SourceError, match=f"alter role {role} createdb"), staged(connection, url):
                pytest.fail("created")
        assert left_behind(database) == []
    finally:
        execute(database, f"drop owned by {role}", f"drop role {role}")
