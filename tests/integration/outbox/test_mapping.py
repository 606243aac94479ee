"""Tables of others as outboxes: what is promised for each, and why one cannot be."""

import pytest
from psycopg import sql

from headwater.errors import SettingsError, SourceError
from headwater.outbox import OUTBOX_TABLE, OutboxColumns, Recovery, check_mapping

# As Debezium's documentation has it, for PostgreSQL.
DEBEZIUM = """create table outbox (id uuid not null primary key, aggregatetype varchar(255) not null,
    aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb)"""
DIALOGPORTEN = """create table "OutboxMessage" ("EventId" uuid primary key,
    "CreatedAt" timestamptz not null default (current_timestamp at time zone 'utc'), "EventType" text not null,
    "EventPayload" jsonb not null, "CorrelationId" varchar(255) not null default gen_random_uuid()::text)"""
MINE = """id uuid not null, topic text not null, type text not null, key text, payload json not null, headers jsonb,
    created_at timestamptz not null default now(), xid xid8 not null default pg_current_xact_id()"""
COLUMNS = OutboxColumns.headwater()


def test_headwater_s_own_table_is_recovered_exactly_and_read_by_its_key(any_connection):
    table = check_mapping(any_connection, OUTBOX_TABLE, COLUMNS)
    assert (table.schema, table.name, table.recovery, table.has_index) == (
        "headwater",
        "outbox_message",
        Recovery.EXACT,
        True,
    )
    assert (table.id_type, table.payload_type) == ("uuid", "json")
    assert "exactly" in table.promise


def test_debezium_s_table_is_an_outbox_without_recovery_until_it_has_a_time_and_exact_with_both(any_connection):
    any_connection.execute(DEBEZIUM)
    table = check_mapping(any_connection, "outbox", OutboxColumns.debezium())
    assert (table.recovery, table.has_index, table.payload_type) == (Recovery.NONE, False, "jsonb")
    assert "is lost" in table.promise

    any_connection.execute("alter table outbox add at timestamptz not null default now()")
    skewed = check_mapping(any_connection, "outbox", OutboxColumns.debezium(created_at="at"))
    assert (skewed.recovery, skewed.has_index) == (Recovery.SKEWED, False)

    any_connection.execute("alter table outbox add writer xid8 not null default pg_current_xact_id()")
    any_connection.execute("create index on outbox (at, id)")
    exact = check_mapping(any_connection, "public.outbox", OutboxColumns.debezium(created_at="at", xid="writer"))
    assert (exact.recovery, exact.has_index) == (Recovery.EXACT, True)


def test_an_index_on_some_rows_only_is_none_to_read_all_by(connection):
    connection.execute(f"create table mine ({MINE})")
    connection.execute("create index on mine (created_at) where key is not null")
    assert not check_mapping(connection, "mine", COLUMNS).has_index


def test_dialogporten_s_table_is_recovered_with_a_skew(connection):
    connection.execute(DIALOGPORTEN)
    table = check_mapping(connection, '"OutboxMessage"', OutboxColumns.dialogporten("dialogs"))
    assert (table.name, table.recovery, table.columns.topic_value) == ("OutboxMessage", Recovery.SKEWED, "dialogs")
    assert "skew" in table.promise


def test_domains_and_enums_stand_for_what_they_are_made_of(connection):
    connection.execute("create domain topic_name as text not null check (value <> '')")
    connection.execute("create type kind as enum ('Created', 'Gone')")
    connection.execute(
        """create table mine (id bigint primary key, topic topic_name, type kind not null, payload text,
           created_at timestamptz not null)"""
    )
    columns = OutboxColumns(id="id", topic="topic", type="type", payload="payload", created_at="created_at")
    assert check_mapping(connection, "mine", columns).id_type == "bigint"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("drop column topic, drop column xid", "it has no column topic and no column xid; .*it has id, type, key"),
        ("alter id drop not null", "column id may be null"),
        ("alter topic drop not null", "column topic may be null"),
        ("alter created_at drop not null", "column created_at may be null"),
        ("alter created_at type timestamp", "created_at is of type timestamp without time zone"),
        ("alter payload type integer using 1", "payload is of type integer"),
        ("alter headers type text", "headers is of type text"),
        ("alter key type text[] using array[key]", r"key is of type text\[\]"),
        ("alter id type json using 'null'", "id is of type json"),
        ("alter xid drop not null", "does not tell the transaction for certain"),
        ("alter xid drop default", "does not tell the transaction for certain"),
        ("alter xid set default '3'", "does not tell the transaction for certain"),
        ("drop column xid, add column xid bigint not null default 1", "does not tell the transaction for certain"),
        ("drop column xid, add column xid text not null default pg_current_xact_id()", "for certain"),
        ("set unlogged", "it is unlogged"),
        ("drop column type, add column type text generated always as (upper(topic)) stored not null", "type is generated"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_what_is_wrong(connection, change, said):
    connection.execute(f"create table mine ({MINE})")
    assert check_mapping(connection, "mine", COLUMNS).recovery is Recovery.EXACT
    connection.execute(f"alter table mine {change}")
    with pytest.raises(SettingsError, match=f"table public.mine cannot be an outbox: .*{said}"):
        check_mapping(connection, "mine", COLUMNS)


def test_what_is_no_table_of_its_own_is_refused(connection):
    connection.execute(f"create table mine ({MINE}) partition by range (created_at)")
    connection.execute("create table part partition of mine default")
    connection.execute("create view seen as select * from mine")
    assert check_mapping(connection, "mine", COLUMNS).recovery is Recovery.EXACT
    with pytest.raises(SettingsError, match=r"public.seen cannot .* it is a view"):
        check_mapping(connection, "seen", COLUMNS)
    with pytest.raises(SettingsError, match=r"public.part cannot .* it is a partition"):
        check_mapping(connection, "part", COLUMNS)
    with pytest.raises(SettingsError, match="may be many"):
        check_mapping(connection, "m*", COLUMNS)
    with pytest.raises(SourceError, match=r"did you mean public\.mine"):
        check_mapping(connection, "mien", COLUMNS)


def test_rows_that_the_role_cannot_read_would_be_lost_and_are_refused(connection):
    role = sql.Identifier("reader_" + connection.info.dbname)
    connection.execute(f"create table mine ({MINE})")
    connection.execute(sql.SQL("create role {}").format(role))
    try:
        connection.execute(sql.SQL("set role {}").format(role))
        with pytest.raises(SettingsError, match="may not read it"):
            check_mapping(connection, "mine", COLUMNS)
        connection.execute("reset role")
        connection.execute(sql.SQL("grant select on mine to {}").format(role))
        connection.execute("alter table mine enable row level security")
        connection.execute(sql.SQL("set role {}").format(role))
        with pytest.raises(SettingsError, match="row security hides rows"):
            check_mapping(connection, "mine", COLUMNS)
    finally:
        connection.execute("reset role")
        connection.execute(sql.SQL("drop owned by {}").format(role))
        connection.execute(sql.SQL("drop role {}").format(role))


def test_a_transaction_without_a_time_is_refused_since_its_rows_could_not_be_read_in_order(connection):
    with pytest.raises(SettingsError, match="map one to created_at, or leave xid out"):
        check_mapping(connection, "public.anything", OutboxColumns.debezium(xid="xid"))
