"""Migrations on real servers: applied once, together with their record, whoever else starts at the same time."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from headwater.errors import SchemaError
from headwater.postgres.connect import connect_sync
from headwater.postgres.migrate import Component, migrate, pending_migrations, read_migrations, require_current

JOBS = "create table headwater.job (id bigint);\ninsert into headwater.job values (1);"
KINDS = "alter table headwater.job add kind text"


def component(*texts, name="queue", schema="headwater"):
    files = {f"{number:04}_step.sql": text for number, text in enumerate(texts, start=1)}
    return Component(name, read_migrations(files), schema)


@pytest.fixture
def connection(any_database):
    with connect_sync(any_database) as connection:
        yield connection


def rows(connection, query):
    return connection.execute(query).fetchall()


def test_migrations_are_applied_in_order_and_once(connection):
    first, both = component(JOBS), component(JOBS, KINDS)

    assert migrate(connection, first) == first.migrations
    assert migrate(connection, both) == both.migrations[1:]
    assert migrate(connection, both) == ()
    assert rows(connection, "select id, kind from headwater.job") == [(1, None)]
    assert rows(connection, "select component, number, name from headwater.migration order by number") == [
        ("queue", 1, "step"),
        ("queue", 2, "step"),
    ]


def test_a_dry_run_lists_what_is_pending_and_writes_nothing(connection):
    assert pending_migrations(connection, component(JOBS)) == component(JOBS).migrations
    assert rows(connection, "select 1 from pg_namespace where nspname = 'headwater'") == []


def test_components_share_a_schema_and_keep_their_own_count(connection):
    migrate(connection, component(JOBS))

    topics = component("create table headwater.topic (id bigint)", name="topics")
    assert migrate(connection, topics) == topics.migrations


def test_the_schema_may_have_another_name(connection):
    migrate(connection, component(JOBS, KINDS, schema="Mine"))

    assert rows(connection, 'select kind from "Mine".job') == [(None,)]
    assert rows(connection, 'select count(*) from "Mine".migration') == [(2,)]
    assert rows(connection, "select 1 from pg_namespace where nspname = 'headwater'") == []


def test_a_migration_that_fails_leaves_nothing_behind_and_those_before_it_in_place(connection):
    broken = component(JOBS, "create table headwater.half (id int); select 1 / 0")

    with pytest.raises(SchemaError, match="0002_step of queue failed and left nothing behind: division by zero; remove "):
        migrate(connection, broken)

    assert pending_migrations(connection, broken) == broken.migrations[1:]
    assert rows(connection, "select to_regclass('headwater.half')") == [(None,)]


def test_an_edited_migration_is_noticed(connection):
    migrate(connection, component(JOBS))

    with pytest.raises(SchemaError, match="0001_step of queue differs"):
        migrate(connection, component(JOBS + " -- edited"))


def test_a_database_newer_than_the_code_is_noticed(connection):
    migrate(connection, component(JOBS, KINDS))

    with pytest.raises(SchemaError, match="upgrade Headwater"):
        require_current(connection, component(JOBS))


def test_a_database_that_lacks_a_migration_is_noticed(connection):
    migrate(connection, component(JOBS))
    require_current(connection, component(JOBS))

    with pytest.raises(SchemaError, match="schema headwater lacks migration 0002_step of queue"):
        require_current(connection, component(JOBS, KINDS))


def test_processes_that_start_at_once_apply_each_migration_once(any_database):
    steps = component(JOBS, KINDS, *(f"alter table headwater.job add c{number} int" for number in range(10)))
    together = Barrier(6)

    def start(_):
        with connect_sync(any_database) as connection:
            together.wait()
            return migrate(connection, steps)

    with ThreadPoolExecutor(6) as pool:
        applied = [migration for done in pool.map(start, range(6)) for migration in done]

    assert sorted(applied, key=lambda migration: migration.number) == list(steps.migrations)


def test_a_user_who_may_not_make_the_schema_is_told_what_to_run(connection):
    connection.execute("create role migrator; set role migrator")
    try:
        with pytest.raises(SchemaError, match=r'may not create schema headwater .* run `create schema "headwater"'):
            migrate(connection, component(JOBS))
    finally:
        connection.execute("reset role; drop role migrator")


def test_a_user_who_owns_the_schema_needs_no_right_to_make_it(connection):
    connection.execute("create role owner_only; create schema headwater authorization owner_only; set role owner_only")
    try:
        assert migrate(connection, component(JOBS)) == component(JOBS).migrations
    finally:
        connection.execute("reset role; drop owned by owner_only; drop role owner_only")
