"""The catalog of real servers of each version."""

from urllib.parse import urlsplit

import psycopg
import pytest

from headwater.postgres.catalog import (
    is_pooled,
    list_columns,
    list_rights,
    list_tables,
    load_types,
    read_server,
    select_tables,
)
from headwater.postgres.connect import connect_sync
from headwater.postgres.types.registry import Field, Kind


@pytest.fixture
def connection(any_database):
    with connect_sync(any_database) as connection:
        yield connection


def only(connection, name):
    (found,) = select_tables(list_tables(connection), [name])
    return found


def test_a_table_comes_with_its_key_and_its_identity(connection):
    connection.execute("create table orders (place int, id int, note text, primary key (id, place) include (note))")

    orders = only(connection, "orders")

    assert (str(orders), orders.kind, orders.persistence, orders.replica_identity) == ("public.orders", "r", "p", "d")
    assert (orders.key, orders.identity) == (["id", "place"], ["id", "place"])


@pytest.mark.parametrize(
    ("definition", "identity", "has_identity"),
    [
        ("create table t (n int, id int primary key)", ["id"], True),
        ("create table t (n int, id int)", [], False),
        ("create table t (n int, id int primary key deferrable)", [], False),
        ("create table t (n int, id int primary key); alter table t replica identity nothing", [], False),
        ("create table t (n int, id int); alter table t replica identity full", [], True),
        (
            "create table t (n int, id int not null unique);alter table t replica identity using index t_id_key",
            ["id"],
            True,
        ),
        (
            "create table t (n int not null, id int primary key); create unique index i on t (n);"
            "alter table t replica identity using index i; drop index i",
            [],
            False,
        ),
    ],
)
def test_the_identity_is_the_one_that_the_server_goes_by(connection, definition, identity, has_identity):
    connection.execute(definition)
    connection.execute("create publication p for table t; insert into t values (1, 1)")

    table = only(connection, "t")

    assert (table.identity, table.has_identity) == (identity, has_identity)
    if has_identity:
        connection.execute("update t set n = 2")
    else:
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
            connection.execute("update t set n = 2")


def test_relations_of_every_kind_are_told_apart(connection):
    connection.execute(
        "create table whole (id int) partition by range (id);"
        "create table part partition of whole for values from (0) to (9);"
        "create view seen as select 1 as one; create materialized view kept as select 1 as one;"
        "create unlogged table scratch (id int); create temporary table gone (id int)"
    )

    found = {table.name: (table.kind, table.persistence, table.is_partition) for table in list_tables(connection)}

    assert found == {
        "whole": ("p", "p", False),
        "part": ("r", "p", True),
        "seen": ("v", "p", False),
        "kept": ("m", "p", False),
        "scratch": ("r", "u", False),
    }


def test_columns_come_with_their_numbers_types_and_places_in_the_key(connection):
    connection.execute(
        "create table t (gone int, b text not null, id bigint generated always as identity, price numeric(10, 2),"
        " twice numeric generated always as (price * 2) stored, primary key (id, b)); alter table t drop column gone"
    )

    columns = list_columns(connection, [only(connection, "t").oid])

    facts = [(each.name, each.attnum, each.type_name, each.not_null, each.key_position) for each in columns]
    assert facts == [
        ("b", 2, "text", True, 2),
        ("id", 3, "bigint", True, 1),
        ("price", 4, "numeric(10,2)", False, None),
        ("twice", 5, "numeric", False, None),
    ]
    assert [each.type_oid for each in columns] == [25, 20, 1700, 1700]
    assert [each.typmod for each in columns] == [-1, -1, ((10 << 16) | 2) + 4, -1]
    assert [(each.identity, each.generated) for each in columns] == [("", ""), ("a", ""), ("", ""), ("", "s")]


def test_types_of_users_come_with_all_that_they_are_made_of(connection):
    connection.execute(
        "create type mood as enum ('happy', 'sad'); create domain short as varchar(5);"
        "create type pair as (feeling mood[], word short); create domain pairs as pair[];"
        "create type span as range (subtype = float8); create table t (a pairs, b span, c span_multirange)"
    )

    types = {each.name: each for each in load_types(connection)}
    oids = {name: each.oid for name, each in types.items()}

    kinds = {name: types[name].kind for name in ("mood", "short", "pair", "pairs", "_pair", "span", "span_multirange")}
    assert kinds == {
        "mood": Kind.ENUM,
        "short": Kind.DOMAIN,
        "pair": Kind.COMPOSITE,
        "pairs": Kind.DOMAIN,
        "_pair": Kind.ARRAY,
        "span": Kind.RANGE,
        "span_multirange": Kind.MULTIRANGE,
    }
    assert types["pair"].fields == (Field("feeling", oids["_mood"]), Field("word", oids["short"]))
    assert (types["short"].base, types["short"].base_typmod) == (oids["varchar"], 9)
    assert (types["pairs"].base, types["_pair"].element) == (oids["_pair"], oids["pair"])
    assert (types["span"].element, types["span_multirange"].element) == (oids["float8"], oids["span"])
    assert types["mood"].schema == "public"


def test_types_can_be_asked_for_one_by_one(connection):
    connection.execute("create type mood as enum ('happy'); create type other as enum ('sad')")
    array = connection.execute("select 'mood[]'::regtype::oid").fetchone()[0]

    assert {each.name for each in load_types(connection, [array])} == {"_mood", "mood"}
    assert load_types(connection, []) == []


def test_a_database_without_tables_has_no_types_of_columns(connection):
    assert load_types(connection) == []


def test_a_server_tells_what_it_is_and_what_it_is_set_to(any_postgres, connection):
    connection.execute("set wal_sender_timeout = '7s'")

    server = read_server(connection)

    assert f"{server.major}" == server.version.split(".")[0] == f"{connection.info.server_version // 10000}"
    assert (server.database, server.user) == (connection.info.dbname, "postgres")
    assert (server.wal_level, server.in_recovery, server.wal_sender_timeout_ms) == ("logical", False, 7000)
    assert (server.max_replication_slots, server.max_wal_senders) == (50, 50)
    assert server.max_slot_wal_keep_bytes is None
    assert server.idle_replication_slot_timeout_seconds is None
    assert (server.is_superuser, server.can_replicate, server.can_create) == (True, True, True)
    assert int(server.system_identifier) > 0


def test_an_ordinary_user_sees_the_same_and_its_own_rights(any_database, connection):
    role = connection.info.dbname + "_reader"
    connection.execute(
        f"create role {role} login password 'reader'; create schema closed; create table closed.secret (id int);"
        f"create table open (id int); grant select on open to {role};"
        f"create table mine (id int); alter table mine owner to {role};"
        "alter table open enable row level security; alter table open replica identity full"
    )
    url = urlsplit(any_database)
    try:
        with connect_sync(url._replace(netloc=f"{role}:reader@127.0.0.1:{url.port}").geturl()) as reader:
            server, tables = read_server(reader), {table.name: table for table in list_tables(reader)}
            rights = {each.oid: each for each in list_rights(reader, [table.oid for table in tables.values()])}
        open_, secret, mine = (rights[tables[name].oid] for name in ("open", "secret", "mine"))

        assert (server.user, server.is_superuser, server.can_replicate, server.can_create) == (role, False, False, False)
        assert (open_.can_use_schema, open_.can_select, open_.is_owner, open_.rows_hidden) == (True, True, False, True)
        assert (secret.can_use_schema, secret.can_select) == (False, False)
        assert (mine.can_select, mine.is_owner, mine.rows_hidden) == (True, True, False)
    finally:
        connection.execute(f"drop owned by {role}; drop role {role}")


def test_a_direct_connection_is_not_taken_for_a_pooled_one(connection):
    assert not is_pooled(connection)
