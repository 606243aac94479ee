"""Publications on real servers of each version, brought in line with what is wanted."""

import logging
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from headwater.errors import IdentityMissing, SourceError
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.publication import (
    AddTables,
    Create,
    Operation,
    Publication,
    SetOptions,
    find_publication,
    plan_publication,
    reconcile,
)


@pytest.fixture
def connection(any_database):
    with connect_sync(any_database) as connection:
        connection.execute("create table a (id int primary key); create table b (id int primary key, n int)")
        yield connection


def published(connection, name="shop"):
    """What the server itself says is published: partitions, if they go under their own names, one by one."""
    rows = connection.execute("select tablename from pg_publication_tables where pubname = %s order by 1", [name])
    return [table for (table,) in rows]


def wanted(*tables, **facts):
    return Publication(name="shop", tables=tables, **facts)


def kinds(steps):
    return [type(step) for step in steps]


def test_a_publication_is_made_and_then_left_alone(connection):
    assert kinds(reconcile(connection, wanted("a", "b"))) == [Create]
    assert published(connection) == ["a", "b"]
    assert reconcile(connection, wanted("a", "b")) == ()


def test_a_plan_writes_nothing(connection):
    assert kinds(plan_publication(connection, wanted("a"))) == [Create]
    assert find_publication(connection, "shop") is None


def test_tables_come_and_go(connection):
    reconcile(connection, wanted("a"))
    reconcile(connection, wanted("b"))

    assert published(connection) == ["b"]


def test_a_pattern_takes_up_tables_that_were_made_since(connection):
    reconcile(connection, wanted("public.*"))
    connection.execute("create table c (id int primary key)")

    assert kinds(reconcile(connection, wanted("public.*"))) == [AddTables]
    assert published(connection) == ["a", "b", "c"]


def test_operations_and_the_way_of_partitions_are_set(connection):
    reconcile(connection, wanted("a"))
    inserts = frozenset({Operation.INSERT, Operation.TRUNCATE})

    assert kinds(reconcile(connection, wanted("a", operations=inserts, via_root=True))) == [SetOptions]
    found = find_publication(connection, "shop")
    assert found is not None and (found.operations, found.via_root) == (inserts, True)


def test_a_row_filter_and_a_column_list_are_taken_away(connection):
    connection.execute("create publication shop for table a where (id > 5), b (id)")

    reconcile(connection, wanted("a", "b"))

    found = find_publication(connection, "shop")
    assert found is not None and (len(found.tables), found.narrowed) == (2, [])


def test_a_publication_of_all_tables_is_left_as_it_is(connection):
    connection.execute("create publication shop for all tables")

    assert reconcile(connection, wanted("a")) == ()
    assert published(connection) == ["a", "b"]


def test_a_publication_of_a_schema_is_left_as_it_is_and_gets_tables_of_others(connection):
    connection.execute("create schema crm; create table crm.client (id int primary key)")
    connection.execute("create publication shop for tables in schema public")

    assert reconcile(connection, wanted("a")) == ()
    reconcile(connection, wanted("a", "crm.client"))
    assert published(connection) == ["a", "b", "client"]


def test_a_partitioned_table_goes_as_its_partitions_or_as_itself(connection):
    connection.execute(
        "create table whole (id int primary key) partition by range (id);"
        "create table part partition of whole for values from (0) to (9)"
    )
    reconcile(connection, wanted("whole"))
    assert published(connection) == ["part"]

    reconcile(connection, wanted("whole", via_root=True))
    assert published(connection) == ["whole"]


def test_tables_that_inherit_from_one_that_is_wanted_are_not_added(connection):
    connection.execute("create table child (primary key (id)) inherits (a)")

    reconcile(connection, wanted("a"))

    assert published(connection) == ["a"]
    assert reconcile(connection, wanted("a")) == ()


def test_names_of_any_kind_are_quoted(connection):
    connection.execute('create schema "100%"; create table "100%"."a ""b"" {c}" (id int primary key)')
    odd = Publication(name='odd "name" %s {x}', tables=('"100%"."a ""b"" {c}"',))

    reconcile(connection, odd)

    assert published(connection, odd.name) == ['a "b" {c}']
    assert reconcile(connection, odd) == ()


def test_a_missing_table_is_named_with_those_that_are_near(connection):
    connection.execute("create table orders (id int primary key)")

    with pytest.raises(SourceError, match=r"table order does not exist; did you mean public\.orders"):
        reconcile(connection, wanted("a", "order"))
    assert find_publication(connection, "shop") is None


def test_a_table_without_key_is_named_with_the_remedy(connection):
    connection.execute("create table bare (id int)")

    with pytest.raises(IdentityMissing, match=r"alter table public\.bare replica identity full"):
        reconcile(connection, wanted("bare"))
    reconcile(connection, wanted("bare", operations=frozenset({Operation.INSERT})))
    assert published(connection) == ["bare"]


def test_processes_that_start_at_once_make_one_publication(any_database, connection):
    together = Barrier(5)

    def start(_):
        with connect_sync(any_database) as connection:
            together.wait()
            return reconcile(connection, wanted("a", "b"))

    with ThreadPoolExecutor(5) as pool:
        done = [step for steps in pool.map(start, range(5)) for step in steps]

    assert kinds(done) == [Create]


def test_a_user_who_may_not_publish_gets_the_statement_for_one_who_may(connection):
    role = connection.info.dbname
    connection.execute(f"create role {role}; set role {role}")
    try:
        with pytest.raises(SourceError, match=r'run `create publication "shop" for table only "public"\."a" with'):
            reconcile(connection, wanted("a"))
    finally:
        connection.execute(f"reset role; drop role {role}")


def test_a_user_who_does_not_own_the_table_gets_the_statement_for_one_who_does(connection):
    role = connection.info.dbname
    connection.execute(f"create role {role}; grant create on database {role} to {role}; set role {role}")
    try:
        with pytest.raises(SourceError, match="must be owner of table a"):
            reconcile(connection, wanted("a"))
    finally:
        connection.execute(f"reset role; drop owned by {role}; drop role {role}")


def test_each_step_is_logged_for_those_who_look_closely(connection, caplog):
    caplog.set_level(logging.DEBUG, "headwater")
    reconcile(connection, wanted("a"))
    reconcile(connection, wanted("a", "b"))

    steps = [vars(record) for record in caplog.records if record.getMessage() == "publication changed"]
    assert [(step["publication"], step["step"]) for step in steps] == [
        ("shop", "create it for public.a"),
        ("shop", "add public.b"),
    ]
