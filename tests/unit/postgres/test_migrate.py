"""Migrations as files, and what is still to apply."""

from datetime import UTC, datetime

import pytest

from headwater.errors import SchemaError, SettingsError
from headwater.postgres.migrate import Applied, Component, plan, read_migrations

FIRST, SECOND = "create table headwater.job (id bigint)", "alter table headwater.job add kind text"
COMPONENT = Component("queue", read_migrations({"0001_jobs.sql": FIRST, "0002_kinds.sql": SECOND}))


def applied(*migrations, **changes):
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    return [Applied(each.number, each.name, changes.get("checksum", each.checksum), moment) for each in migrations]


def test_files_are_read_in_the_order_of_their_numbers():
    migrations = read_migrations({"0002_b.sql": "2", "0001_a.sql": "1"})

    assert [str(migration) for migration in migrations] == ["0001_a", "0002_b"]


@pytest.mark.parametrize(
    "file_names", [["0002_a.sql"], ["0001_a.sql", "0003_b.sql"], ["0001_a.sql", "0001_b.sql"], ["a.sql"]]
)
def test_numbers_with_a_gap_or_a_repeat_are_refused(file_names):
    with pytest.raises(SchemaError, match="out of line"):
        read_migrations(dict.fromkeys(file_names, ""))


def test_a_new_database_gets_them_all():
    assert plan(COMPONENT, []) == COMPONENT.migrations


def test_a_database_gets_what_it_lacks():
    assert plan(COMPONENT, applied(COMPONENT.migrations[0])) == COMPONENT.migrations[1:]


def test_a_database_that_has_them_all_gets_none():
    assert plan(COMPONENT, applied(*COMPONENT.migrations)) == ()


def test_a_database_newer_than_the_code_asks_for_an_upgrade():
    older = Component("queue", COMPONENT.migrations[:1])

    with pytest.raises(SchemaError, match="version 2, and this release knows only 1; upgrade Headwater"):
        plan(older, applied(*COMPONENT.migrations))


def test_a_migration_that_was_edited_after_it_was_applied_is_named():
    with pytest.raises(SchemaError, match=r"0001_jobs of queue differs from what was applied on 2026-01-02; restore"):
        plan(COMPONENT, applied(COMPONENT.migrations[0], checksum="other"))


@pytest.mark.parametrize("schema", ["", "a b", 'a"b', "a%b", "1a", "a" * 64])
def test_a_schema_that_would_need_quoting_is_refused(schema):
    with pytest.raises(SettingsError, match="letters, digits and underscores"):
        Component("queue", (), schema)
