"""Slots on real servers of each version: made, listed, dropped, lost."""

import logging
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from urllib.parse import urlsplit

import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.errors import ConnectionLost, SettingsError, SlotActive, SlotInvalidated, SlotMissing, SourceError
from headwater.postgres.connect import connect_sync, describe
from headwater.postgres.replication.slot import create_slot, drop_slot, find_slot, list_slots, require_usable
from headwater.postgres.replication.stream import ReplicationConnection
from tests.support.servers.embedded import MAJORS, fresh_database, postgres_settings
from tests.support.waiting import eventually


@pytest.fixture
def connection(any_database):
    with connect_sync(any_database) as connection:
        yield connection


@pytest.fixture
def name(connection):
    """A name that no other database on the same server has."""
    return connection.info.dbname[:60]


def test_a_slot_is_made_at_a_point_from_which_it_can_stream(any_database, connection, name):
    with ReplicationConnection(any_database) as commands:
        point = create_slot(commands, name)

    slot = require_usable(find_slot(connection, name), name, connection.info.dbname)
    assert (slot.name, slot.plugin, slot.database) == (name, "pgoutput", connection.info.dbname)
    assert (slot.temporary, slot.active, slot.active_pid, slot.two_phase, slot.failover) == (
        False,
        False,
        None,
        False,
        False,
    )
    assert slot.confirmed_flush_lsn == point
    assert slot.restart_lsn is not None and slot.restart_lsn <= point
    assert slot.wal_status == "reserved"
    assert slot.invalidation_reason is None


def test_a_slot_keeps_the_wal_that_is_written_after_it(any_database, connection, name):
    with ReplicationConnection(any_database) as commands:
        create_slot(commands, name)
    before = find_slot(connection, name)
    connection.execute("create table t as select * from generate_series(1, 10000)")
    after = find_slot(connection, name)

    assert before is not None and after is not None
    assert (after.retained_bytes or 0) - (before.retained_bytes or 0) > 100_000
    assert (after.lag_bytes or 0) - (before.lag_bytes or 0) > 100_000


def test_a_temporary_slot_ends_with_its_connection(any_database, connection, name):
    with ReplicationConnection(any_database) as commands:
        create_slot(commands, name, temporary=True)
        slot = find_slot(connection, name)
        assert slot is not None and slot.temporary and slot.active
        connection.execute("select pg_terminate_backend(%s, 5000)", [slot.active_pid])

    assert find_slot(connection, name) is None


def test_a_slot_that_has_to_wait_for_a_transaction_is_given_up_on_request_and_not_made_later(any_database, connection, name):
    stopping = Event()
    with (
        connect_sync(any_database) as other,
        other.transaction(),
        ReplicationConnection(any_database, stopping) as commands,
        ThreadPoolExecutor() as pool,
    ):
        other.execute("select pg_current_xact_id()")
        making = pool.submit(create_slot, commands, name)
        try:
            half_made = eventually(lambda: find_slot(connection, name))
            with pytest.raises(SlotActive, match=rf"is in use \(session {half_made.active_pid} is making it, until all"):
                require_usable(half_made, name, connection.info.dbname)
        finally:
            stopping.set()
        with pytest.raises(ConnectionLost, match="CREATE_REPLICATION_SLOT was given up"):
            making.result()
        # The connection and the transaction are both there still.
        assert find_slot(connection, name) is None
        stopping.clear()
        assert commands.identify().database == connection.info.dbname


def test_a_slot_that_follows_a_failover_needs_postgresql_17(any_database, connection, name):
    with ReplicationConnection(any_database) as commands:
        if commands.server_version < 170000:
            with pytest.raises(SettingsError, match=r"cannot follow a failover on this server; .*17"):
                create_slot(commands, name, failover=True)
        else:
            create_slot(commands, name, failover=True)
            slot = find_slot(connection, name)
            assert slot is not None and slot.failover and not slot.synced


def test_a_slot_that_is_there_already_is_named(any_database, name):
    with ReplicationConnection(any_database) as commands:
        create_slot(commands, name)
        with pytest.raises(SourceError, match=rf"cannot create slot '{name}'.*already exists; use it as it is, or drop it"):
            create_slot(commands, name)


def test_what_is_made_and_dropped_is_logged_for_those_who_look_closely(database, caplog):
    caplog.set_level(logging.DEBUG, "headwater")
    with connect_sync(database) as connection, ReplicationConnection(database) as commands:
        point = create_slot(commands, "shop")
        drop_slot(connection, "shop")

    facts = {record.getMessage(): vars(record) for record in caplog.records}
    assert facts["connected to PostgreSQL"]["server"] == describe(database)
    assert facts["slot created"]["slot"] == facts["slot dropped"]["slot"] == "shop"
    assert facts["slot created"]["consistent_point"] == str(point)
    assert not [record for record in caplog.records if urlsplit(database).password in f"{vars(record)}"]


def test_a_dropped_slot_is_gone_and_cannot_be_dropped_again(any_database, connection, name):
    with ReplicationConnection(any_database) as commands:
        create_slot(commands, name)
    drop_slot(connection, name)

    assert name not in [slot.name for slot in list_slots(connection)]
    with pytest.raises(SlotMissing):
        drop_slot(connection, name)


def test_a_slot_in_use_is_not_dropped(any_database, connection, name):
    with ReplicationConnection(any_database) as commands:
        create_slot(commands, name, temporary=True)
        with pytest.raises(SlotActive, match=f"'{name}' is in use"):
            drop_slot(connection, name)


def test_a_user_without_the_right_to_replicate_may_not_drop_a_slot(any_database, connection, name):
    with ReplicationConnection(any_database) as commands:
        create_slot(commands, name)
    connection.execute(f"create role {name} ; set role {name}")
    try:
        with pytest.raises(SourceError, match=f"may not drop slot '{name}'"):
            drop_slot(connection, name)
    finally:
        connection.execute(f"reset role; drop role {name}")


def test_a_physical_slot_is_not_for_us(connection, name):
    connection.execute("select pg_create_physical_replication_slot(%s)", [name])
    try:
        with pytest.raises(SourceError, match=f"slot '{name}' is a physical one"):
            require_usable(find_slot(connection, name), name, connection.info.dbname)
    finally:
        drop_slot(connection, name)


def test_a_slot_of_another_database_names_that_database(any_database, connection, name):
    with ReplicationConnection(any_database) as commands:
        create_slot(commands, name)

    with connect_sync(urlsplit(any_database)._replace(path="/postgres").geturl()) as elsewhere:
        slot = find_slot(elsewhere, name)
    with pytest.raises(SourceError, match=f"belongs to database '{connection.info.dbname}'"):
        require_usable(slot, name, "postgres")


def test_a_slot_that_decodes_prepared_transactions_is_not_for_us(connection, name):
    connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", [name])

    with pytest.raises(SourceError, match="two_phase"):
        require_usable(find_slot(connection, name), name, connection.info.dbname)


def test_a_slot_of_another_plugin_is_not_for_us(postgres15):
    # Only Debian's server brings another plugin.
    with fresh_database(postgres15.url) as url, connect_sync(url) as connection:
        connection.execute("select pg_create_logical_replication_slot('other', 'test_decoding')")

        with pytest.raises(SourceError, match="slot 'other' speaks test_decoding"):
            require_usable(find_slot(connection, "other"), "other", connection.info.dbname)


@pytest.mark.parametrize("major", MAJORS)
def test_a_slot_whose_wal_the_server_gave_up_is_invalidated(major):
    with EmbeddedPostgres(postgres_settings(major, max_slot_wal_keep_size="1MB", max_wal_size="32MB")) as server:
        with ReplicationConnection(server.url) as commands:
            create_slot(commands, "lost")
        with connect_sync(server.url) as connection:
            for _ in range(3):
                connection.execute("select pg_logical_emit_message(false, '', 'x'), pg_switch_wal()")
            connection.execute("checkpoint")
            slot = find_slot(connection, "lost")

            assert slot is not None and slot.wal_status == "lost"
            with pytest.raises(SlotInvalidated, match="raise max_slot_wal_keep_size") as caught:
                require_usable(slot, "lost", "postgres")
            assert (caught.value.slot, caught.value.reason) == ("lost", "wal_removed")


@pytest.mark.parametrize("major", MAJORS)
def test_a_server_without_logical_wal_says_what_to_set(major):
    said = r"cannot create slot 'shop'.*; set wal_level = logical and restart"
    with (
        EmbeddedPostgres(postgres_settings(major, wal_level="replica")) as server,
        ReplicationConnection(server.url) as commands,
        pytest.raises(SourceError, match=said),
    ):
        create_slot(commands, "shop")


@pytest.mark.parametrize("major", MAJORS)
def test_a_server_whose_slots_are_all_in_use_says_what_to_do(major):
    full = postgres_settings(major, max_replication_slots="1")
    with EmbeddedPostgres(full) as server, ReplicationConnection(server.url) as commands:
        create_slot(commands, "first")
        with pytest.raises(SourceError, match=r"cannot create slot 'second'.*; drop one .* raise max_replication_slots"):
            create_slot(commands, "second")
