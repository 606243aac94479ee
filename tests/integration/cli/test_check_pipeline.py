"""`headwater check` of a pipeline file: every part that would fail in a run, each with its remedy."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

from headwater.model import Position
from headwater.postgres.connect import connect_sync
from headwater.postgres.migrate import Component, migrate
from headwater.spark.state import Phase, Report, fetch_server_position, save_report
from tests.support.servers.embedded import fresh_database

FILE = """
name = "shop"
[source]
url = "${{HEADWATER_URL}}"
tables = ["orders"]
slot = "{slot}"
{rest}
"""
NOOP = '[[sinks]]\ntype = "noop"\n'


def execute(url, statements):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements)


def slot_of(url):
    """Slots are the server's, and tests run side by side: the database's name makes one of its own."""
    return urlsplit(url).path[1:]


@contextmanager
def role(url, attributes=""):
    """A role that exists as long as the test, and the URL to connect as it."""
    name, parts = slot_of(url), urlsplit(url)
    execute(url, f"create role {name} login password 'secret' {attributes}")
    try:
        yield name, parts._replace(netloc=f"{name}:secret@127.0.0.1:{parts.port}").geturl()
    finally:
        execute(url, f"drop owned by {name}; drop role {name}")


@pytest.fixture
def source(database):
    execute(database, "create table orders (id int primary key, note text, amount int)")
    return database


@pytest.fixture
def check(headwater, tmp_path, monkeypatch):
    """Check a pipeline of the table orders; gives the exit code and the findings by subject."""

    def call(url, rest=NOOP, *, slot=None):
        path = tmp_path / "shop.toml"
        path.write_text(FILE.format(slot=slot or slot_of(url), rest=rest))
        monkeypatch.setenv("HEADWATER_URL", url)
        code, output, errors = headwater("check", "--file", str(path), "--json")
        assert errors == ""
        found: dict[str, list[tuple[str, str, str]]] = {}
        for finding in json.loads(output)["findings"]:
            found.setdefault(finding["subject"], []).append((finding["level"], finding["found"], finding["remedy"]))
        return code, found

    return call


def errors_in(found):
    return [subject for subject, findings in found.items() for level, *_ in findings if level == "error"]


def test_a_pipeline_that_can_run_has_no_error(source, check):
    code, found = check(source)

    assert (code, errors_in(found)) == (0, [])
    slot = slot_of(source)
    assert found["file"][0][0] == found["Spark"][0][0] == found["Java"][0][0] == "ok"
    assert found[f"slot {slot}"] == found[f"publication {slot}"] == [("ok", "does not exist yet", "")]
    assert found["table public.orders"] == [("ok", "3 columns; replica identity: primary key (id)", "")]
    assert found["state database"] == [("ok", f"schema headwater will be made in {slot}", "")]
    assert found["sink noop"][0][0] == "ok"


def test_the_file_of_the_current_directory_is_checked_by_default(source, headwater, tmp_path, monkeypatch):
    (tmp_path / "headwater.toml").write_text(FILE.format(slot=slot_of(source), rest=NOOP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_URL", source)

    code, output, _ = headwater("check")
    assert code == 0
    assert "ok       file: pipeline shop" in output
    assert output.endswith("headwater.toml has errors: 0, warnings: 1\n")

    _, output, _ = headwater("check", "orders")
    assert "file:" not in output


def test_a_file_and_tables_exclude_each_other(headwater):
    code, _, errors = headwater("check", "orders", "--file", "shop.toml")

    assert code == 2
    assert "tables and --file exclude each other" in errors


def test_a_file_that_is_wrong_is_refused_whole(headwater, tmp_path):
    (tmp_path / "shop.toml").write_text('name = "shop"\n[source]\ntabels = ["orders"]\n')

    code, output, errors = headwater("check", "--file", str(tmp_path / "shop.toml"))

    assert (code, output) == (2, "")
    assert "source.tabels: there is no such key; did you mean `tables`?" in errors
    assert "sinks: is missing" in errors


def test_one_part_that_fails_hides_no_other(source, check):
    rest = 'lanes = 2\n[[sinks]]\ntype = "noop"\n'
    away = "host=127.0.0.1 port=1 dbname=away"

    code, found = check(away, rest, slot="shop")

    assert code == 1
    assert errors_in(found) == ["source", "state database"]
    assert found["sink noop"][0][0] == "ok"


def test_a_publication_that_is_younger_than_the_slot_would_be_is_refused(source, check):
    execute(source, "select pg_create_logical_replication_slot(current_database(), 'pgoutput')")

    code, found = check(source)

    slot = slot_of(source)
    assert code == 1
    ((level, said, remedy),) = found[f"publication {slot}"]
    assert level == "error"
    assert "changes that wait in it would be missing" in said
    assert f"headwater slots drop {slot}" in remedy


def test_a_publication_that_lacks_a_table_will_get_it_and_one_that_has_more_is_well(source, check):
    slot = slot_of(source)
    execute(source, f"create table other (id int primary key); create publication {slot} for table other")
    code, found = check(source)
    assert code == 0
    assert found[f"publication {slot}"] == [("ok", "lacks public.orders, which will be added", "")]

    execute(source, f"alter publication {slot} add table orders")
    code, found = check(source)
    assert (code, found[f"publication {slot}"]) == (0, [("ok", "covers the tables", "")])


def test_a_pipeline_whose_slot_is_gone_cannot_go_on(source, check):
    with connect_sync(source) as connection:
        migrate(connection, Component.of("headwater.spark"))
        position = Position(fetch_server_position(connection).flush_lsn, 0)
        save_report(connection, "shop", slot_of(source), Report(phase=Phase.STOPPED, position=position))

    code, found = check(source)

    assert code == 1
    assert found[f"slot {slot_of(source)}"][0][:2] == ("error", f"replication slot {slot_of(source)!r} does not exist")
    assert found["state database"][0][1].endswith("is as this release wants it")


def test_a_role_that_may_not_make_the_schema_is_named_with_the_remedy(source, check):
    with role(source, "replication") as (name, url):
        execute(source, f"grant select on orders to {name}")
        code, found = check(url)
        assert code == 1
        ((level, said, remedy),) = found["state database"]
        assert (level, said) == ("error", f"role {name} may not create schema headwater in database {name}")
        assert f'create schema headwater authorization "{name}"' in remedy

        execute(source, f"create schema headwater authorization {name}")
        _, found = check(url)
        assert found["state database"] == [("ok", f"tables will be made in schema headwater of {name}", "")]


def test_columns_to_be_masked_or_hashed_are_looked_at(source, check):
    rest = f"""{NOOP}[transform]
hash = ["public.orders.amount", "public.orders.nte"]
[transform.mask]
"public.orders.note" = "***"
"""
    code, found = check(source, rest)

    assert code == 1
    assert found["transform.mask public.orders.note"] == [("ok", "is of type text", "")]
    assert found["transform.hash public.orders.amount"][0][:2] == ("error", "is of type integer")
    assert found["transform.hash public.orders.nte"][0][2] == "did you mean public.orders.note?"


def test_a_target_that_is_not_there_is_an_error_of_its_sink(source, check):
    code, found = check(source, '[[sinks]]\ntype = "postgres"\nurl = "host=127.0.0.1 port=1 dbname=away"\n')

    assert (code, errors_in(found)) == (1, ["sink postgres"])


def test_a_target_that_is_fit_is_ok(source, postgres18, check):
    with fresh_database(postgres18.url) as target:
        code, found = check(source, f'[[sinks]]\ntype = "postgres"\nurl = "{target}"\n')

    assert (code, errors_in(found)) == (0, [])


@pytest.mark.timeout(300)
def test_a_transform_is_tried_before_a_run(source, tmp_path):
    """In a process of its own: the check starts a Spark, and stops it."""
    rest = f'{NOOP}[transform]\nsql = "selec 1"\n'
    (tmp_path / "headwater.toml").write_text(FILE.format(slot=slot_of(source), rest=rest))
    command = [sys.executable, "-m", "headwater.cli", "check"]

    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "HEADWATER_URL": source},
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert (done.returncode, done.stderr) == (1, "")
    assert (
        "error    transform: transform.sql: Syntax error at or near 'selec' (line 1, position 0) -> correct the SQL"
        in done.stdout.splitlines()
    )


def nats_sink(url, more=""):
    return f'[[sinks]]\ntype = "nats"\nurl = "{url}"\n{more}'


def test_a_nats_sink_that_can_be_written_to_is_well(check, source, nats):
    code, found = check(source, nats_sink(nats.url))

    assert code == 0
    assert found["sink nats"] == [("ok", "can be written to", "")]


def test_a_nats_server_that_is_away_or_refuses_us_is_named(check, source, nats):
    away = check(source, nats_sink("nats://127.0.0.1:1", 'timeout = "2s"'))
    refused = check(source, nats_sink(f"nats://nobody:secret@127.0.0.1:{nats.port}"))

    for code, found in (away, refused):
        assert code == 1
        ((level, said, remedy),) = found["sink nats"]
        assert level == "error" and "127.0.0.1" in f"{said}{remedy}" and "secret" not in f"{said}{remedy}"


def test_a_table_without_key_is_an_error_before_a_run_would_publish_it(check, source, nats):
    execute(source, "alter table orders drop constraint orders_pkey")

    code, found = check(source, nats_sink(nats.url))

    assert code == 1
    ((_, said, remedy),) = [one for one in found["table public.orders"] if one[0] == "error"]
    assert "updates and deletes cannot be captured, and fail once it is published" in said
    assert "alter table public.orders replica identity full" in remedy


def test_a_role_that_may_not_make_creeks_objects_is_told_what_to_ask_for(check, source, nats):
    with role(source, "replication") as (name, url):
        execute(source, f"alter table orders owner to {name}; create schema headwater authorization {name}")
        code, found = check(url, nats_sink(nats.url))

    assert code == 1
    assert any(f'create schema _creek authorization "{name}"' in f"{said}{remedy}" for _, said, remedy in found["sink nats"])
