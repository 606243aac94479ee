"""`headwater verify` on real databases: what it finds, what it refuses, and that a pipeline may run meanwhile."""

import json
from contextlib import ExitStack, closing, contextmanager
from threading import Event, Thread
from urllib.parse import urlsplit

import pytest

from headwater.capture import Capture, CaptureSettings
from headwater.capture.tables import prepare_tables
from headwater.cli.pipeline import load_pipeline
from headwater.model import Change, Op
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.slot import create_slot
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.spark.pipeline import Pipeline
from headwater.spark.sinks.build import build_sinks
from tests.support.capture.captured_database import decoded
from tests.support.servers.embedded import fresh_database
from tests.support.waiting import eventually

ITEM = "create table item (id int primary key, v int)"
POSTGRES_SINK = '[[sinks]]\ntype = "postgres"\nurl = "${TARGET_URL}"\n'


@pytest.fixture
def target(postgres18):
    with fresh_database(postgres18.url) as url:
        yield url


@pytest.fixture
def verify(headwater, database, target, tmp_path, monkeypatch):
    """Run the command on a pipeline file with some tables; gives the exit code and what was printed."""
    monkeypatch.setenv("HEADWATER_URL", database)
    monkeypatch.setenv("TARGET_URL", target)

    def call(*arguments, tables='"item"', more="", sinks=POSTGRES_SINK):
        file = tmp_path / "shop.toml"
        source = f'[source]\nurl = "${{HEADWATER_URL}}"\ntables = [{tables}]\nslot = "{slot_of(database)}"\n'
        file.write_text(f'name = "shop"\n{source}{more}{sinks}')
        return headwater("verify", *arguments, "--file", str(file))

    return call


def slot_of(database):
    """Slots are the server's, and tests run side by side: the database's name makes one of its own."""
    return urlsplit(database).path[1:]


def run(url, *statements):
    with closing(connect_sync(url)) as connection:
        for statement in statements:
            connection.execute(statement)


def on_both(database, target, *statements):
    for url in (database, target):
        run(url, *statements)


def test_equal_tables_are_said_to_be_equal_and_compared_as_they_are_without_a_pipeline(verify, database, target):
    on_both(database, target, ITEM, "insert into item select g, g from generate_series(1, 100) g")

    code, output, errors = verify()

    assert (code, errors) == (0, "")
    assert "the pipeline does not run, so they were compared as they are" in output
    assert "public.item  100          100          0        0      0          equal" in output
    assert output.endswith("all 100 rows of 1 tables are equal\n")


def test_differences_are_listed_by_key_and_end_with_exit_code_1(verify, database, target):
    on_both(database, target, ITEM, "insert into item select g, g from generate_series(1, 100) g")
    run(
        target, "delete from item where id in (3, 4)", "update item set v = 0 where id = 5", "insert into item values (0, 0)"
    )

    code, output, _ = verify("--limit", "1")

    assert code == 1
    assert "public.item id=3 is missing in the target\n" in output
    assert "public.item id=0 is in the target only\n" in output
    assert "public.item id=5 differs in v\n" in output
    assert "public.item: 1 more rows are not equal" in output
    assert output.endswith("1 of 1 tables not shown to be equal\n")

    code, output, _ = verify("--json")

    (sink,) = json.loads(output)["sinks"]
    (table,) = sink["tables"]
    assert (code, sink["running"], table["equal"]) == (1, False, False)
    assert (table["source_rows"], table["missing"], table["extra"], table["different"]) == (100, 2, 1, 1)
    assert table["differences"][-1] == {"kind": "different", "key": {"id": "5"}, "columns": ["v"]}


def test_a_table_that_cannot_be_compared_is_one_line_and_the_others_go_on(verify, database, target):
    on_both(database, target, ITEM, "create table other (id int primary key)")
    run(database, "create table gone (id int primary key)", "create table locked (id int primary key)")
    run(target, "create table locked (x int)")

    code, output, errors = verify(tables='"item", "other", "gone", "locked", "nowhere"')

    assert (code, errors) == (1, "")
    assert "public.item   " in output and "public.other  " in output
    assert output.count("0        0      0          equal") == 2
    assert "public.gone: it is missing in the target; run the pipeline, which makes it, or create it\n" in output
    assert "public.locked: table public.locked has no column in common with that of the target" in output
    assert "nowhere: in the source: table nowhere does not exist" in output
    assert "3 of 5 tables not shown to be equal" in output


def test_a_table_that_the_role_may_not_read_is_one_line_and_the_others_go_on(verify, database, target, monkeypatch):
    role = f"reader_{urlsplit(target).path[-20:]}"
    on_both(database, target, ITEM, "create table other (id int primary key)", "insert into other values (1)")
    run(target, f"create role {role} login password 'secret'", f"grant select on other to {role}")
    place = urlsplit(target)
    monkeypatch.setenv("TARGET_URL", place._replace(netloc=f"{role}:secret@{place.hostname}:{place.port}").geturl())
    try:
        code, output, errors = verify(tables='"item", "other"')
    finally:
        run(target, f"drop owned by {role}", f"drop role {role}")

    assert code == 1
    assert "public.item: the target refused to read it: permission denied for table item; grant this role select" in output
    assert "public.other  1            1            0        0      0          equal" in output
    assert "secret" not in output + errors


def test_tables_are_chosen_by_name_and_others_are_not_looked_at(verify, database, target):
    on_both(database, target, ITEM, 'create table "Other" (id int primary key)', "create table stranger (id int)")
    run(target, "insert into item values (1, 1)")

    code, output, _ = verify('"Other"', tables='\'public."Other"\', "item"')
    assert code == 0
    assert 'public."Other"' in output and "public.item" not in output

    code, output, _ = verify("stranger")
    assert code == 1
    assert "public.stranger: it is no table of pipeline shop; name one that is, or add it to the pipeline" in output


def test_what_the_run_knows_of_its_tables_counts(verify, database, target):
    """Tables that were added to the pipeline or taken out of it, and one that is yet to be read as a whole."""
    on_both(
        database, target, ITEM, "create table added (id int)", "create table left_out (id int)", "create table new (id int)"
    )
    prepare_tables(database)
    run(
        database,
        "insert into headwater.pipeline_table (pipeline, schema_name, table_name, state, is_added, reason) values "
        "('shop', 'public', 'added', 'streaming', true, ''), ('shop', 'public', 'left_out', 'left', false, ''), "
        "('shop', 'public', 'new', 'wanted', false, ''), ('another', 'public', 'item', 'left', false, '')",
    )

    code, output, _ = verify("--json", tables='"item", "left_out", "new"')

    found = {table["table"]: table for table in json.loads(output)["sinks"][0]["tables"]}
    assert code == 1
    assert sorted(found) == ["public.added", "public.item", "public.new"]
    assert found["public.added"]["equal"] and found["public.item"]["equal"]
    assert found["public.new"]["error"].startswith("the pipeline has yet to read it as a whole")


def test_a_column_that_the_target_lacks_is_a_difference_and_one_of_its_own_is_not(verify, database, target):
    run(database, "create table item (id int primary key, v int)")
    run(target, "create table item (id int primary key)", "create table other (id int primary key, loaded_at timestamptz)")
    run(database, "create table other (id int primary key)")

    code, output, _ = verify(tables='"item", "other"')

    assert code == 1
    assert "public.item: the target lacks column v; add it, or read the table as a whole again\n" in output
    assert "public.other: only the target has column loaded_at, which was not compared\n" in output
    assert "1 of 2 tables not shown to be equal" in output


def test_a_masked_table_is_refused_and_the_others_go_on(verify, database, target):
    on_both(database, target, ITEM, "create table customer (id int primary key, phone text)")

    code, output, _ = verify(tables='"item", "customer"', more='[transform]\nmask = { "public.customer.phone" = "***" }\n')

    assert code == 1
    assert "public.customer: it cannot be compared, since phone is masked or hashed on its way\n" in output
    assert "public.item      0            0            0        0      0          equal" in output


@pytest.mark.parametrize("transform", ["filter = \"op = 'c'\"", 'sql = "select * from changes"'])
def test_a_pipeline_whose_transform_may_change_any_row_is_refused(verify, transform):
    code, output, errors = verify(more=f"[transform]\n{transform}\n")

    assert (code, output) == (2, "")
    assert f"transform.{transform.split()[0]}, which changes or leaves out rows on their way" in errors


def test_a_pipeline_without_a_postgres_sink_is_refused(verify):
    code, _, errors = verify(sinks='[[sinks]]\ntype = "noop"\n')

    assert code == 2
    assert errors == "error: pipeline shop has no sink of type postgres, and no other can be compared; add one\n"


def test_each_sink_is_compared(verify, database, target, postgres18, monkeypatch):
    with fresh_database(postgres18.url) as second:
        monkeypatch.setenv("SECOND_URL", second)
        for url in (database, target, second):
            run(url, ITEM)
        run(second, "insert into item values (1, 1)")
        sinks = "".join(
            f'[[sinks]]\ntype = "postgres"\nname = "{name}"\nurl = "${{{name.upper()}_URL}}"\n'
            for name in ("target", "second")
        )

        code, output, _ = verify(sinks=sinks)

    assert code == 1
    assert "sink target: source at" in output and "sink second: source at" in output
    assert "1 of 2 tables not shown to be equal" in output


def test_a_server_that_is_away_is_one_line(verify, database, monkeypatch):
    run(database, ITEM)
    monkeypatch.setenv("TARGET_URL", "postgresql://me:hunter2@127.0.0.1:1/shop")

    code, output, errors = verify()

    assert (code, output) == (1, "")
    assert errors.startswith("error: no connection to PostgreSQL at me@127.0.0.1:1/shop")
    assert "hunter2" not in errors


class Follower:
    """Reads the slot and applies what comes to the target, as a pipeline does; it can be held up and told to lose rows."""

    def __init__(self, source, target):
        self._settings = CaptureSettings(url=source, slot=slot_of(source), publications=("pub",))
        self._target, self._stopping = target, Event()
        self.going, self.loses = Event(), set()
        self.going.set()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_raised):
        self._stopping.set()
        self.going.set()
        self._thread.join()

    def _run(self):
        with Capture(self._settings) as capture, closing(connect_sync(self._target)) as connection:
            while not self._stopping.is_set():
                batch = capture.take(0.05)
                if batch is None:
                    continue
                self.going.wait()
                with connection.transaction():
                    for change in decoded(batch):
                        if isinstance(change, Change):
                            self._apply(connection, change)
                if batch.end:
                    capture.confirm(batch.end)

    def _apply(self, connection, change):
        if change.op is Op.DELETE:
            connection.execute("delete from item where id = %s", [change.key["id"]])
        elif change.after["id"] not in self.loses:
            connection.execute(
                "insert into item values (%s, %s) on conflict (id) do update set v = excluded.v",
                [change.after["id"], change.after["v"]],
            )


@contextmanager
def followed(database, target):
    """Two databases with a table, and somebody who keeps the second like the first."""
    on_both(database, target, ITEM, "insert into item select g, 0 from generate_series(1, 500) g")
    run(database, "create publication pub for table item")
    with closing(ReplicationConnection(database)) as replication:
        create_slot(replication, slot_of(database))
    with Follower(database, target) as follower, closing(connect_sync(database)) as connection:
        query = "select active from pg_replication_slots where slot_name = current_database()"
        eventually(lambda: connection.execute(query).fetchone() == (True,))
        yield follower


def test_a_pipeline_that_is_behind_is_waited_for(verify, database, target):
    with followed(database, target) as follower, closing(connect_sync(database)) as connection:
        follower.going.clear()
        connection.execute("update item set v = 1")
        released = Thread(target=lambda: (marked(connection), follower.going.set()))
        released.start()

        code, output, _ = verify()
        released.join()

    assert code == 0, output
    assert "when the pipeline had delivered all that the source shows" in output


def marked(connection):
    """Wait until the command has written its mark, which it does once it has its snapshot, and waits for the pipeline."""
    before = connection.execute("select pg_current_wal_insert_lsn()").fetchone()
    eventually(lambda: connection.execute("select pg_current_wal_insert_lsn()").fetchone() > before)


def test_a_running_pipeline_under_load_is_equal_whenever_it_is_looked_at(verify, database, target):
    stopping = Event()

    def write():
        with closing(connect_sync(database)) as connection:
            number = 0
            # No faster than one who applies row by row can follow.
            while not stopping.wait(0.02):
                number += 1
                connection.execute("update item set v = v + 1 where id between %s and %s", [number % 400, number % 400 + 5])
                connection.execute("insert into item values (%s, 0)", [1000 + number])
                connection.execute("delete from item where id = %s", [990 + number])

    with followed(database, target), ExitStack() as stack:
        writer = Thread(target=write)
        writer.start()
        stack.callback(writer.join)
        stack.callback(stopping.set)
        results = [json.loads(verify("--json")[1]) for _ in range(5)]

    tables = [result["sinks"][0]["tables"][0] for result in results]
    assert [(table["missing"], table["extra"], table["different"]) for table in tables] == [(0, 0, 0)] * 5
    assert all(result["equal"] and result["sinks"][0]["running"] for result in results)
    assert sum(table["changed_meanwhile"] for table in tables) > 0


def test_a_row_that_a_running_pipeline_has_lost_is_found_among_those_that_are_on_their_way(verify, database, target):
    stopping = Event()

    def write():
        with closing(connect_sync(database)) as connection:
            while not stopping.wait(0.02):
                connection.execute("update item set v = v + 1 where id between 5 and 10 and id <> 7")

    with followed(database, target) as follower, ExitStack() as stack:
        follower.loses.add(7)
        run(database, "update item set v = 5 where id = 7")
        writer = Thread(target=write)
        writer.start()
        stack.callback(writer.join)
        stack.callback(stopping.set)

        code, output, _ = verify("--json")

    (table,) = json.loads(output)["sinks"][0]["tables"]
    assert code == 1
    assert table["differences"] == [{"kind": "different", "key": {"id": "7"}, "columns": ["v"]}]


@pytest.mark.timeout(300)
def test_a_pipeline_on_spark_that_has_nothing_to_do_is_seen_to_have_delivered_everything(
    spark, verify, database, target, tmp_path
):
    """The slot passes the mark although no batch holds it."""
    run(database, ITEM)
    assert verify("--json")[0] == 1
    settings, stopping = load_pipeline(tmp_path / "shop.toml"), Event()
    running = Thread(target=Pipeline(spark, settings, build_sinks(settings), stopping).run)
    running.start()
    with closing(connect_sync(target)) as connection:
        try:
            eventually(lambda: connection.execute("select to_regclass('item')").fetchone() != (None,), seconds=120)
            run(database, "insert into item select g, g from generate_series(1, 1000) g")

            code, output = eventually(lambda: caught_up(verify("--json")), seconds=120)
        finally:
            stopping.set()
            running.join()

    (sink,) = output["sinks"]
    assert (code, sink["running"], sink["caught_up"]) == (0, True, True)
    assert (sink["tables"][0]["source_rows"], sink["tables"][0]["target_rows"]) == (1000, 1000)


def caught_up(result):
    """What was found, once the pipeline is up and has read its table as a whole."""
    code, output = result[0], json.loads(result[1])
    sink = output["sinks"][0]
    return (code, output) if sink["running"] and sink["tables"][0]["error"] is None else None
