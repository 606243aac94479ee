"""Schema `_creek`: schemas kept and found again, and the SQL functions that change a producer, beside Creek's own."""

from contextlib import closing
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg import sql

from headwater.creek.messages import SchemaMessage
from headwater.creek.published import published_tables
from headwater.creek.store import find_schema, prepare_creek, save_schemas
from headwater.postgres.connect import connect_sync

# As Creek itself makes them, at every start.
CREEKS_OWN = (
    "create schema if not exists _creek",
    """create table if not exists _creek.avro_schemas (fingerprint text constraint pk_avro_schema primary key, schema text,
       source text, at timestamptz default now())""",
    """create or replace function _creek.add_table(pub text, _tbl regclass) returns void language plpgsql
       as $$ begin perform pg_notify('creek', 'ADD x'); end $$""",
    """create or replace function _creek.remove_table(pub text, _tbl regclass) returns void language plpgsql
       as $$ begin perform pg_notify('creek', 'REMOVE x'); end $$""",
)


def message(fingerprint="9oTzOV2QDOA=", schema='{"type":"record"}', source="public.other"):
    return SchemaMessage(fingerprint, schema, source, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def connection(any_database):
    with closing(connect_sync(any_database)) as connection:
        yield connection


@pytest.fixture
def creek(connection):
    """A database with Creek's objects, a publication, and a table that it does not have yet."""
    prepare_creek(connection)
    connection.execute("create table item (id int primary key)")
    connection.execute('create schema "Sales.2"')
    connection.execute("""create table "Sales.2"."Order 'Items'" (id int primary key, "Größe" text)""")
    connection.execute("create table log (at timestamptz)")
    connection.execute('create publication "My pub" for table item')
    return connection


def add(connection, table, publication="My pub"):
    connection.execute("select _creek.add_table(%s, %s::text::regclass)", [publication, table])


def published(connection, publication="My pub"):
    query = "select schemaname, tablename from pg_publication_tables where pubname = %s order by 1, 2"
    return connection.execute(query, [publication]).fetchall()


def test_a_schema_that_was_saved_is_found_and_what_was_said_first_stays(connection):
    prepare_creek(connection)
    assert save_schemas(connection, [message(), message("tehSZhnhMvI=")]) == {"9oTzOV2QDOA=", "tehSZhnhMvI="}

    assert save_schemas(connection, [message(source="public.another"), message("new=")]) == {"new="}

    found = find_schema(connection, "9oTzOV2QDOA=")
    assert found is not None
    assert (found.fingerprint, found.schema, found.source) == ("9oTzOV2QDOA=", '{"type":"record"}', "public.other")
    assert found.created_at.tzinfo is not None
    assert find_schema(connection, "unknown") is None


def test_two_tables_with_one_fingerprint_are_saved_at_once(connection):
    prepare_creek(connection)

    assert save_schemas(connection, [message(), message(source="public.another")]) == {"9oTzOV2QDOA="}

    found = find_schema(connection, "9oTzOV2QDOA=")
    assert found is not None and found.source == "public.other"


def test_a_database_that_creek_has_never_used_knows_no_schema(connection):
    assert find_schema(connection, "9oTzOV2QDOA=") is None


def test_the_objects_of_a_creek_producer_are_taken_over_with_what_they_hold(connection):
    for statement in CREEKS_OWN:
        connection.execute(statement.encode())
    connection.execute("insert into _creek.avro_schemas (fingerprint, schema, source) values ('old=', '{}', 'public.old')")
    connection.execute("create table log (at timestamptz)")
    connection.execute("create publication pub")

    prepare_creek(connection)
    prepare_creek(connection)

    found = find_schema(connection, "old=")
    assert found is not None and found.source == "public.old"
    with pytest.raises(psycopg.Error, match="no replica identity"):
        add(connection, "log", "pub")
    # A Creek producer that starts again finds what it makes itself.
    for statement in CREEKS_OWN:
        connection.execute(statement.encode())


def test_a_table_is_added_and_removed_by_its_quoted_name_and_whoever_listens_is_told(creek):
    creek.execute("listen creek")
    table = sql.Identifier("Sales.2", "Order 'Items'").as_string()

    add(creek, table)
    add(creek, table)
    assert published(creek) == [("Sales.2", "Order 'Items'"), ("public", "item")]
    creek.execute("select _creek.remove_table('My pub', %s::text::regclass)", [table])

    assert published(creek) == [("public", "item")]
    told = [(one.channel, one.payload) for one in creek.notifies(timeout=5, stop_after=3)]
    assert told == [
        ("creek", "ADD Sales.2.Order 'Items'"),
        ("creek", "ADD Sales.2.Order 'Items'"),
        ("creek", "REMOVE Sales.2.Order 'Items'"),
    ]


def test_a_function_does_not_depend_on_the_search_path(creek):
    creek.execute("create schema other; create table other.item (id int primary key)")
    creek.execute("set search_path = other, public")

    add(creek, "item")

    assert published(creek) == [("other", "item"), ("public", "item")]


@pytest.mark.parametrize(
    ("made", "table"),
    [
        ("create table keyless (id int)", "public.keyless"),
        ("create table keyless (id int primary key); alter table keyless replica identity nothing", "public.keyless"),
        (
            "create table parent (id int) partition by list (id); "
            "create table keyless partition of parent for values in (1)",
            "public.keyless",
        ),
    ],
)
def test_a_table_without_key_is_refused_with_the_remedy_and_its_updates_go_on(creek, made, table):
    creek.execute(made)
    wanted = "parent" if "parent" in made else "keyless"

    with pytest.raises(
        psycopg.errors.ObjectNotInPrerequisiteState, match=f"table {table} has no replica identity"
    ) as raised:
        add(creek, wanted)

    assert raised.value.diag.message_hint == (f"Add a primary key, or run: alter table {table} replica identity full")
    assert published(creek) == [("public", "item")]
    creek.execute("insert into keyless values (1); update keyless set id = 1")


@pytest.mark.parametrize(
    "made",
    [
        "create table whole (id int); alter table whole replica identity full",
        "create table whole (id int not null unique); alter table whole replica identity using index whole_id_key",
    ],
)
def test_a_table_with_another_identity_is_added(creek, made):
    creek.execute(made)

    add(creek, "whole")

    assert published(creek) == [("public", "item"), ("public", "whole")]


def test_a_publication_of_inserts_alone_takes_a_table_without_key(creek):
    creek.execute("create publication inserts for table item with (publish = 'insert')")

    add(creek, "log", "inserts")

    assert published(creek, "inserts") == [("public", "item"), ("public", "log")]


def test_a_publication_that_is_missing_is_named(creek):
    with pytest.raises(psycopg.errors.UndefinedObject, match='publication "none" does not exist'):
        add(creek, "item", "none")


def test_published_tables_are_those_of_the_stream_with_its_columns(connection):
    connection.execute("create type mood as enum ('sad', 'happy')")
    connection.execute("create table item (id int primary key, m mood, double int generated always as (id * 2) stored)")
    connection.execute("create table loose (a int, b text); alter table loose replica identity full")
    connection.execute("create table part (id int primary key) partition by list (id)")
    connection.execute("create table part_1 partition of part for values in (1)")
    connection.execute("create table other (id int primary key)")
    connection.execute("create publication roots for table item, loose, part with (publish_via_partition_root = true)")
    connection.execute("create publication leaves for table part, item (id)")

    roots, leaves = published_tables(connection, "roots"), published_tables(connection, "leaves")

    assert [one.relation.table for one in roots] == ["public.item", "public.loose", "public.part"]
    item, loose, part = (one.relation for one in roots)
    assert [(column.name, column.key) for column in item.columns] == [("id", True), ("m", False)]
    assert [type_.name for type_ in roots[0].own_types] == ["mood"]
    assert [(column.name, column.key) for column in loose.columns] == [("a", True), ("b", True)]
    assert (item.identity, loose.identity, part.identity) == ("d", "f", "d")
    assert [(one.relation.table, len(one.relation.columns)) for one in leaves] == [("public.item", 1), ("public.part_1", 1)]
    assert published_tables(connection, "none") == []
