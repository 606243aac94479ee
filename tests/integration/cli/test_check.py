"""`headwater check` against real servers of each version: what is wrong, with the object and the remedy."""

import json
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.postgres.replication.slot import create_slot
from headwater.postgres.replication.stream import ReplicationConnection
from tests.support.servers.cancel_key_pooler import pooler
from tests.support.servers.embedded import MAJORS, fresh_database, postgres_settings


def execute(url, statements):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements)


def with_user(url, user, password):
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:{password}@127.0.0.1:{parts.port}").geturl()


@contextmanager
def role(url, attributes=""):
    """A role that exists as long as the test, and the URL to connect as it."""
    name = urlsplit(url).path[1:]
    execute(url, f"create role {name} login password 'secret' {attributes}")
    try:
        yield name, with_user(url, name, "secret")
    finally:
        execute(url, f"drop owned by {name}; drop role {name}")


@pytest.fixture
def check(headwater):
    """Run the check and give its exit code and its findings by subject."""

    def call(url, *arguments):
        code, output, errors = headwater("check", *arguments, "--json", "--url", url)
        assert errors == ""
        report = json.loads(output)
        found: dict[str, list[tuple[str, str, str]]] = {}
        for finding in report["findings"]:
            found.setdefault(finding["subject"], []).append((finding["level"], finding["found"], finding["remedy"]))
        return code, found

    return call


def test_a_database_that_is_fit_has_no_error(any_database, check):
    execute(any_database, "create table orders (id int primary key, note text)")

    code, found = check(any_database, "orders", "--slot", "headwater_new", "--publication", "headwater_new")

    assert code == 0
    assert found["connection"] == [("ok", "leads straight to the server", "")]
    assert found["replication connection"][0][0] == "ok"
    assert found["table public.orders"] == [("ok", "2 columns; replica identity: primary key (id)", "")]
    assert found["slot headwater_new"] == found["publication headwater_new"] == [("ok", "does not exist yet", "")]
    assert found["max_slot_wal_keep_size"][0][0] == "warning"


def test_text_names_the_server_and_puts_each_finding_on_a_line(any_database, headwater):
    code, output, errors = headwater("check", "--url", any_database)

    assert (code, errors) == (0, "")
    assert "ok       wal_level: logical\n" in output
    assert output.splitlines()[-1].endswith(f"{urlsplit(any_database).path} has errors: 0, warnings: 1")
    assert urlsplit(any_database).password not in output


def test_a_wrong_password_is_one_line_without_the_password(any_database, headwater):
    code, output, errors = headwater("check", "--url", with_user(any_database, "postgres", "hunter2"))

    assert (code, output) == (1, "")
    assert errors.startswith("error: PostgreSQL at postgres@127.0.0.1")
    assert "password authentication failed" in errors
    assert "check user and password" in errors
    assert errors.count("\n") == 1
    assert "hunter2" not in errors


def test_a_wrong_password_is_not_shown_at_debug_level_either(database, headwater):
    _, _, errors = headwater("--log-level", "debug", "check", "--url", with_user(database, "postgres", "hunter2"))

    assert "Traceback" in errors
    assert "hunter2" not in errors


def test_a_user_without_the_right_to_replicate_is_named_with_the_remedy(any_database, check):
    with role(any_database) as (name, url):
        code, found = check(url)

    assert code == 1
    (level, said, remedy) = found["replication connection"][0]
    assert level == "error"
    assert name in said
    assert remedy == f"run `alter role {name} replication` as a superuser"


def test_rights_that_are_missing_on_tables_are_named_with_the_grants(any_database, check):
    execute(any_database, "create schema closed; create table closed.orders (id int primary key)")
    with role(any_database, "replication") as (name, url):
        code, found = check(url, "closed.orders", "--publication", "shop")

    assert code == 1
    remedies = [remedy for _, _, remedy in found["table closed.orders"] + found["publication shop"]]
    assert f"run `grant usage on schema closed to {name}`" in remedies
    assert f"run `grant select on closed.orders to {name}`" in remedies
    assert any(f"grant create on database {name} to {name}" in remedy for remedy in remedies)
    assert any("create publication ... for table closed.orders" in remedy for remedy in remedies)


def test_row_security_that_hides_rows_from_a_snapshot_is_a_warning(any_database, check):
    execute(any_database, "create table orders (id int primary key); alter table orders enable row level security")
    with role(any_database, "replication") as (name, url):
        execute(any_database, f"grant select on orders to {name}")
        code, found = check(url, "orders")

    assert code == 0
    assert [level for level, said, _ in found["table public.orders"] if "row security" in said] == ["warning"]


def test_a_missing_table_is_named_with_those_that_are_near_and_the_rest_is_still_looked_at(any_database, check):
    execute(any_database, "create table orders (id int primary key); create table items (id int primary key)")

    code, found = check(any_database, "ordres", "items")

    assert code == 1
    assert found["table ordres"] == [("error", "table ordres does not exist", "did you mean public.orders?")]
    assert found["table public.items"][0][0] == "ok"


def test_a_table_without_key_is_named_with_the_remedy(any_database, check):
    execute(any_database, "create table log (line text)")

    code, found = check(any_database, "public.*")

    assert code == 1
    ((level, said, remedy),) = found["table public.log"]
    assert level == "error"
    assert "no replica identity (it has no primary key)" in said
    assert "alter table public.log replica identity full" in remedy


def test_generated_columns_and_columns_of_users_types_are_judged(any_database, check):
    execute(
        any_database,
        "create type mood as enum ('happy');"
        "create table t (id int primary key, m mood[], twice int generated always as (id * 2) stored)",
    )

    code, found = check(any_database, "t")

    assert code == 0
    assert [level for level, _, _ in found["table public.t"]] == ["ok", "warning"]
    assert "generated columns are not in the stream: twice" in found["table public.t"][1][1]


def test_generated_columns_that_the_publication_sends_are_fine(database, check):
    execute(
        database,
        "create table t (id int primary key, twice int generated always as (id * 2) stored);"
        "create publication p for table t with (publish_generated_columns = stored)",
    )

    _, found = check(database, "t", "--publication", "p")

    assert [level for level, _, _ in found["table public.t"]] == ["ok"]


def test_a_publication_tells_which_tables_to_look_at_when_none_is_named(any_database, check):
    execute(any_database, "create table a (id int primary key); create table b (id int); create publication p for table a")

    code, found = check(any_database, "--publication", "p")

    assert code == 0
    assert "table public.a" in found
    assert "table public.b" not in found


def test_a_publication_that_lacks_a_table_is_found(any_database, check):
    execute(
        any_database,
        "create table a (id int primary key); create table b (id int primary key); create publication p for table a",
    )

    _, found = check(any_database, "a", "b", "--publication", "p")

    assert "add public.b" in found["publication p"][0][1]


def test_a_slot_of_another_database_is_found(any_postgres, any_database, check):
    with fresh_database(any_postgres.url) as other:
        name = urlsplit(other).path[1:]
        with ReplicationConnection(other) as replication:
            create_slot(replication, name)
        code, found = check(any_database, "--slot", name)

    assert code == 1
    assert f"belongs to database '{name}'" in found[f"slot {name}"][0][1]


def test_a_slot_of_another_plugin_is_found(postgres15, check):
    # Only Debian's server brings another plugin.
    with fresh_database(postgres15.url) as url:
        execute(url, "select pg_create_logical_replication_slot('other', 'test_decoding')")
        code, found = check(url, "--slot", "other")

    assert code == 1
    assert found["slot other"][0][1:] == (
        "slot 'other' speaks test_decoding, and Headwater reads pgoutput",
        "name another slot, or a new one",
    )


def test_a_slot_name_that_cannot_be_is_wrong_usage(headwater, database):
    code, _, errors = headwater("check", "--slot", "Not-Valid", "--url", database)

    assert code == 2
    assert "cannot be a slot's name" in errors


@pytest.mark.parametrize("major", MAJORS)
def test_a_server_without_logical_wal_and_without_room_is_found(major, check):
    with EmbeddedPostgres(postgres_settings(major, wal_level="replica", max_replication_slots="0")) as server:
        code, found = check(server.url)

    assert code == 1
    assert found["wal_level"][0][2] == "run `alter system set wal_level = 'logical'` and restart the server"
    assert found["replication slots"][0][0] == "error"


@pytest.mark.parametrize("major", MAJORS)
def test_an_invalidated_slot_is_found(major, check):
    with EmbeddedPostgres(postgres_settings(major, max_slot_wal_keep_size="1MB", max_wal_size="32MB")) as server:
        with ReplicationConnection(server.url) as replication:
            create_slot(replication, "lost")
        with psycopg.connect(server.url, autocommit=True) as connection:
            for _ in range(3):
                connection.execute("select pg_logical_emit_message(false, '', 'x'), pg_switch_wal()")
            connection.execute("checkpoint")
        code, found = check(server.url, "--slot", "lost")

    assert code == 1
    ((level, said, remedy),) = found["slot lost"]
    assert (level, said) == ("error", "replication slot 'lost' was invalidated by the server (wal_removed)")
    assert "headwater slots drop lost" in remedy
    assert found["max_slot_wal_keep_size"][0][0] == "ok"


def through(url, port):
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}").geturl() + "&gssencmode=disable"


def test_a_pooler_in_front_is_noticed(any_database, check):
    with pooler(urlsplit(any_database).port or 0) as port:
        code, found = check(through(any_database, port))

    assert code == 0
    assert found["connection"][0] == (
        "warning",
        "a pooler is in front of the server, which does not carry LISTEN, and often no replication",
        "give the server's own host and port",
    )


def test_a_pooler_that_refuses_replication_is_an_error(any_database, check):
    with pooler(urlsplit(any_database).port or 0, refuses_replication=True) as port:
        code, found = check(through(any_database, port))

    assert code == 1
    assert found["connection"][0][0] == "warning"
    (level, said, _) = found["replication connection"][0]
    assert level == "error"
    assert "unsupported startup parameter: replication" in said
