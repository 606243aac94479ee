"""`headwater outbox init` and `purge` against real servers."""

import json
from contextlib import closing
from datetime import UTC, datetime

import psycopg
import pytest

from headwater import outbox
from headwater.outbox.checkpoint import prepare_outbox
from headwater.postgres.connect import connect_sync


@pytest.fixture
def connection(any_database):
    with closing(connect_sync(any_database)) as connection:
        yield connection


@pytest.fixture
def old(connection, any_database, headwater):
    """An outbox with a delivered partition of long ago, and a later one with an event that was not delivered."""
    assert headwater("outbox", "init", "--url", any_database)[0] == 0
    for day in (10, 11):
        connection.execute(
            f"create table headwater.old_{day} partition of headwater.outbox_message "
            f"for values from ('2026-01-{day} 00:00Z') to ('2026-01-{day + 1} 00:00Z')"
        )
        connection.execute(
            "insert into headwater.outbox_message (topic, type, payload, created_at) values ('t', 'y', '1', %s)",
            [f"2026-01-{day} 12:00Z"],
        )
        if day == 10:
            connection.execute(
                """insert into headwater.outbox_checkpoint
                       (pipeline, table_name, epoch, phase, system_identifier, timeline, snapshot, lsn)
                   select 'shop', 'headwater.outbox_message', 1, 'streaming', system_identifier::text, 1,
                          pg_current_snapshot(), '0/1'
                     from pg_control_system()"""
            )
    return connection


def tables(connection):
    query = "select relname from pg_class where relname like 'old\\_%' and relkind = 'r' order by 1"
    return [name for (name,) in connection.execute(query)]


def test_init_makes_the_tables_and_the_partitions_of_a_week_and_again_changes_nothing(connection, any_database, headwater):
    code, output, errors = headwater("outbox", "init", "--url", any_database)
    assert (code, errors) == (0, "")
    assert "partitions made: 8, up to " in output

    with connection.transaction():
        outbox.publish_sync(connection, "t", "y", 1)
    code, output, errors = headwater("outbox", "init", "--url", any_database)
    assert (code, errors) == (0, "")
    assert output == "the outbox is headwater.outbox_message, the inbox headwater.inbox_message\n"
    assert connection.execute("select count(*) from headwater.outbox_message_default").fetchone() == (0,)
    assert connection.execute("select count(*) from headwater.outbox_message").fetchone() == (1,)


def test_an_outbox_in_use_gets_no_partition_of_the_present_which_would_fail_those_who_write(database, headwater):
    prepare_outbox(database)
    with closing(connect_sync(database)) as connection:
        # Long ago, so that the day of today could have a partition.
        insert = (
            "insert into headwater.outbox_message (topic, type, payload, created_at) values ('t', 'y', '1', '2026-01-01Z')"
        )
        connection.execute(insert)
        for command in (("init",), ("purge", "--older-than", "99999d")):
            code, output, _ = headwater("outbox", *command, "--url", database)
            assert code == 0
            query = "select min(relname) from pg_class where relname like 'outbox\\_message\\_2%' and relkind = 'r'"
            ((first,),) = connection.execute(query).fetchall()
            assert first > f"outbox_message_{datetime.now(UTC):%Y%m%d}_9999"
    assert "partitions made" not in output, "the second has found those of the first"


def test_init_grants_a_role_the_right_to_write(database, headwater):
    with closing(connect_sync(database)) as connection:
        role = f"App {connection.info.dbname}"
        connection.execute(f'create role "{role}"')
        try:
            code, output, _ = headwater("outbox", "init", "--grant", role, "--url", database)
            assert (code, output.splitlines()[-1]) == (0, f"role {role} may write events and remember messages")
            connection.execute(f'set role "{role}"')
            with connection.transaction():
                outbox.publish_sync(connection, "t", "y", 1)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("select from headwater.outbox_message")
        finally:
            connection.execute("reset role")
            connection.execute(f'drop owned by "{role}"')
            connection.execute(f'drop role "{role}"')


@pytest.mark.parametrize("option", ["--grant", "--grant-relay"])
def test_init_for_a_role_that_is_not_there_says_so(database, headwater, option):
    code, _, errors = headwater("outbox", "init", option, "nobody_here", "--url", database)
    assert code == 1
    assert 'role "nobody_here" does not exist; create it first, or correct its name' in errors
    with closing(connect_sync(database)) as connection:
        assert connection.execute("select to_regnamespace('headwater')").fetchall() == [(None,)], "nothing was made"


@pytest.mark.parametrize("option", ["--grant", "--grant-relay"])
def test_init_grants_all_roles_by_public(database, headwater, option):
    code, _, errors = headwater("outbox", "init", option, "public", "--url", database)
    assert (code, errors) == (0, "")


def test_purge_drops_what_was_delivered_and_tells_why_the_rest_was_kept(old, any_database, headwater):
    code, output, errors = headwater("outbox", "purge", "--older-than", "7d", "--url", any_database)
    assert (code, errors) == (0, "")
    assert tables(old) == ["old_11"]
    lines = [line.split(maxsplit=2) for line in output.splitlines()]
    assert lines[1][:2] == ["old_10", "dropped"]
    assert lines[2] == ["old_11", "kept", "pipeline shop has not delivered all of it, by its saved checkpoint"]


def test_purge_in_json_has_the_same(old, any_database, headwater):
    code, output, errors = headwater(
        "outbox", "purge", "--older-than", "168h", "--ahead", "8d", "--json", "--url", any_database
    )
    found = json.loads(output)
    assert (code, errors, found["dry_run"]) == (0, "", False)
    assert [one["partition"] for one in found["dropped"]] == ["old_10"]
    assert found["dropped"][0]["from"].startswith("2026-01-10T00:00:00")
    assert found["dropped"][0]["bytes"] > 0
    assert [one["partition"] for one in found["kept"]] == ["old_11"]
    assert (len(found["made"]), found["not_made"], found["deleted_from_default"]) == (1, [], 0)


def test_a_dry_run_tells_and_changes_nothing(old, any_database, headwater):
    code, output, _ = headwater("outbox", "purge", "--older-than", "7d", "--dry-run", "--url", any_database)
    assert (code, tables(old)) == (0, ["old_10", "old_11"])
    assert output.splitlines()[1].startswith("old_10     would be dropped")


def test_purge_of_nothing_says_so(database, headwater):
    headwater("outbox", "init", "--url", database)
    assert headwater("outbox", "purge", "--older-than", "7d", "--url", database) == (0, "nothing is that old\n", "")


def test_purge_tells_of_what_it_deleted_from_the_default_partition(old, any_database, headwater):
    old.execute(
        "insert into headwater.outbox_message (topic, type, payload, created_at) values ('t', 'y', '1', '2025-01-01')"
    )
    old.execute("update headwater.outbox_checkpoint set snapshot = pg_current_snapshot()")
    _, output, _ = headwater("outbox", "purge", "--older-than", "7d", "--url", any_database)
    assert "deleted from the default partition: 1" in output
    assert tables(old) == []


def test_purge_without_an_outbox_says_what_to_run(database, headwater):
    code, output, errors = headwater("outbox", "purge", "--older-than", "7d", "--url", database)
    assert (code, output) == (1, "")
    assert errors.startswith("error: this database has no outbox") and "`headwater outbox init`" in errors


@pytest.mark.parametrize("age", ["7", "week", "-1d", "9e9d", "99999999999d"])
def test_an_age_that_is_none_is_wrong_usage(database, headwater, age):
    code, _, errors = headwater("outbox", "purge", "--older-than", age, "--url", database)
    assert (code, "--older-than must be a duration" in errors) == (2, True)
