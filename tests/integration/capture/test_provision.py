"""Publication and slot: made in this order if they are missing, and never changed if they are there."""

import pytest

from headwater.capture.provision import provision
from headwater.errors import IdentityMissing, SourceError
from headwater.postgres.connect import Connection, connect_sync

PUBLISHED = "select tablename from pg_publication_tables where pubname = 'hw' order by tablename"
SLOTS = "select slot_name, plugin, two_phase from pg_replication_slots where database = current_database()"


@pytest.fixture
def connection(database):
    with connect_sync(database) as connection:
        connection.execute("create table item (id int primary key)")
        connection.execute("create table other (id int primary key)")
        yield connection


def _published(connection: Connection) -> list[str]:
    return [name for (name,) in connection.execute(PUBLISHED).fetchall()]


def test_both_are_made_where_nothing_is(any_database):
    with connect_sync(any_database) as connection:
        connection.execute("create table item (id int primary key)")
        connection.execute("create table other (id int primary key)")
        assert provision(any_database, "hw", "hw", ("item",))
        assert _published(connection) == ["item"]
        assert connection.execute(SLOTS).fetchall() == [("hw", "pgoutput", False)]


def test_a_second_time_changes_nothing_and_says_so(database, connection):
    assert provision(database, "hw", "hw", ("item", "other"))
    before = connection.execute("select confirmed_flush_lsn, restart_lsn from pg_replication_slots").fetchall()
    assert not provision(database, "hw", "hw", ("item",))
    assert _published(connection) == ["item", "other"]
    assert connection.execute("select confirmed_flush_lsn, restart_lsn from pg_replication_slots").fetchall() == before


def test_a_publication_of_all_tables_will_do(database, connection):
    connection.execute("create publication hw for all tables")
    assert provision(database, "hw", "hw", ("item",))
    assert _published(connection) == ["item", "other"]


def test_a_publication_that_is_there_is_not_widened(database, connection):
    connection.execute("create publication hw for table item")
    with pytest.raises(SourceError, match=r"does not hold all that is wanted \(add public\.other\); add that, or name"):
        provision(database, "hw", "hw", ("item", "other"))
    assert _published(connection) == ["item"]
    assert connection.execute(SLOTS).fetchall() == []


@pytest.mark.parametrize("publication", ["missing", "for table item"])
def test_no_publication_is_made_for_a_slot_that_is_there(database, connection, publication):
    """What waits in the slot was written before the table was published, and would be missing."""
    if publication != "missing":
        connection.execute("create publication hw for table item")
    connection.execute("select pg_create_logical_replication_slot('hw', 'pgoutput')")
    with pytest.raises(SourceError, match="and slot 'hw' is there already, so changes that wait in it would be missing"):
        provision(database, "hw", "hw", ("item", "other"))
    assert _published(connection) == ([] if publication == "missing" else ["item"])


def test_a_slot_that_cannot_be_used_is_refused_before_anything_is_made(database, connection):
    connection.execute("select pg_create_physical_replication_slot('hw_physical')")
    try:
        with pytest.raises(SourceError, match="'hw_physical' is a physical one"):
            provision(database, "hw_physical", "hw", ("item",))
        assert connection.execute("select count(*) from pg_publication").fetchone() == (0,)
    finally:
        connection.execute("select pg_drop_replication_slot('hw_physical')")


def test_a_table_without_identity_is_refused_before_anything_is_made(database, connection):
    connection.execute("create table plain (id int)")
    with pytest.raises(IdentityMissing, match=r"public\.plain has no replica identity"):
        provision(database, "hw", "hw", ("item", "plain"))
    assert connection.execute("select count(*) from pg_publication").fetchone() == (0,)
    assert connection.execute(SLOTS).fetchall() == []


def test_a_role_that_may_not_publish_is_told_who_can(database, connection):
    connection.execute("create role reader_of_provision login replication password 'x'")
    try:
        name = connection.info.dbname
        url = f"postgresql://reader_of_provision:x@127.0.0.1:{connection.info.port}/{name}"
        with pytest.raises(
            SourceError, match=r"role reader_of_provision may not publish item .*have their owner create"
        ) as caught:
            provision(url, "hw", "hw", ("item",))
        assert ":x@" not in str(caught.value)
        assert connection.execute(SLOTS).fetchall() == []
    finally:
        connection.execute("drop role reader_of_provision")
