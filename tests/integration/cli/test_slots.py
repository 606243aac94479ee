"""`headwater slots` against real servers of each version."""

import io
import json
from urllib.parse import urlsplit

import psycopg
import pytest

from headwater.postgres.replication.slot import create_slot
from headwater.postgres.replication.stream import ReplicationConnection


@pytest.fixture
def name(any_database):
    """A name of ours that no other database on the same server has."""
    return f"headwater_{urlsplit(any_database).path[1:]}"


@pytest.fixture
def slot(any_database, name):
    with ReplicationConnection(any_database) as replication:
        create_slot(replication, name)
    return name


def listed(headwater, url):
    code, output, errors = headwater("slots", "list", "--json", "--url", url)
    assert (code, errors) == (0, "")
    return {slot["name"]: slot for slot in json.loads(output)}


def test_slots_are_listed_with_what_they_keep_and_ours_without_a_reader_are_marked(any_database, slot, headwater):
    found = listed(headwater, any_database)[slot]

    assert (found["plugin"], found["database"]) == ("pgoutput", urlsplit(any_database).path[1:])
    assert (found["active"], found["ours"], found["orphan"]) == (False, True, True)
    assert found["retained_bytes"] >= 0
    assert "/" in found["restart_lsn"]


def test_a_slot_with_a_reader_is_no_orphan(any_database, name, headwater):
    with ReplicationConnection(any_database) as replication:
        create_slot(replication, name, temporary=True)
        found = listed(headwater, any_database)[name]

    assert (found["active"], found["temporary"], found["orphan"]) == (True, True, False)


def test_the_list_is_what_slots_does_by_itself(any_database, slot, headwater):
    code, output, errors = headwater("slots", "--url", any_database)

    assert (code, errors) == (0, "")
    assert output.splitlines()[0].split() == ["slot", "plugin", "database", "active", "WAL", "kept", "behind", "note"]
    (line,) = [line for line in output.splitlines() if line.startswith(slot)]
    assert line.endswith("orphan?")
    assert "without a reader" in output.splitlines()[-1]


def test_a_server_without_slots_says_so(database, headwater):
    assert headwater("slots", "--url", database) == (0, "no logical replication slots\n", "")


def test_physical_slots_of_others_are_not_shown(any_database, headwater):
    with psycopg.connect(any_database, autocommit=True) as connection:
        connection.execute("select pg_create_physical_replication_slot('standby')")
        try:
            assert "standby" not in listed(headwater, any_database)
        finally:
            connection.execute("select pg_drop_replication_slot('standby')")


def test_a_slot_is_dropped_when_told_so(any_database, slot, headwater):
    code, output, errors = headwater("slots", "drop", slot, "--yes", "--url", any_database)

    assert (code, errors) == (0, "")
    assert output.startswith(f"dropped slot {slot}, which kept ")
    assert slot not in listed(headwater, any_database)


@pytest.mark.parametrize(("answer", "code", "is_left"), [("y\n", 0, False), ("n\n", 1, True), ("", 1, True)])
def test_a_slot_is_dropped_only_after_a_yes(any_database, slot, headwater, monkeypatch, answer, code, is_left):
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))

    done, _, errors = headwater("slots", "drop", slot, "--url", any_database)

    assert done == code
    assert f"Drop slot {slot}, which keeps" in errors
    assert (slot in listed(headwater, any_database)) is is_left


def test_a_slot_in_use_is_refused_with_its_reader(any_database, name, headwater):
    with ReplicationConnection(any_database) as replication:
        create_slot(replication, name, temporary=True)
        code, output, errors = headwater("slots", "drop", name, "--yes", "--url", any_database)

    assert (code, output) == (1, "")
    assert errors.startswith(f"error: replication slot '{name}' is in use (process ")
    assert "stop its reader" in errors


def test_a_missing_slot_is_named(database, headwater):
    code, output, errors = headwater("slots", "drop", "nope", "--url", database)

    assert (code, output) == (1, "")
    assert errors == "error: replication slot 'nope' does not exist; run `headwater slots` to see which do\n"


def test_the_url_comes_from_the_environment_or_from_libpq_s_own_variables(database, headwater, monkeypatch):
    monkeypatch.setenv("HEADWATER_URL", database)
    assert headwater("slots")[0] == 0

    monkeypatch.delenv("HEADWATER_URL")
    parts = urlsplit(database)
    for variable, value in {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(parts.port),
        "PGUSER": parts.username,
        "PGPASSWORD": parts.password,
        "PGDATABASE": parts.path[1:],
    }.items():
        monkeypatch.setenv(variable, value or "")
    assert headwater("slots")[0] == 0


def test_a_server_that_is_not_there_is_one_line(headwater, unused_tcp_port):
    code, output, errors = headwater("slots", "--url", f"postgresql://me:hunter2@127.0.0.1:{unused_tcp_port}/shop")

    assert (code, output, errors.count("\n")) == (1, "", 1)
    assert errors.startswith(f"error: no connection to PostgreSQL at me@127.0.0.1:{unused_tcp_port}/shop: ")
    assert "hunter2" not in errors
