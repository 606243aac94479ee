"""The databases that the fixtures give to tests, and what is left of them."""

import psycopg
import pytest
from psycopg import pq

from tests.support.servers.embedded import fresh_database, skip_or_fail


def ask(url: str, query: str, *parameters: object) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode(), parameters).fetchone()
    return row[0] if row else None


def test_each_test_has_an_empty_database_of_its_own(database, postgres18):
    assert ask(database, "select current_database()") != ask(postgres18.url, "select current_database()")
    assert ask(database, "select count(*) from pg_stat_user_tables") == 0


def test_a_database_of_every_version_takes_logical_slots(any_database):
    assert ask(any_database, "show wal_level") == "logical"
    assert ask(any_database, "select slot_name from pg_create_logical_replication_slot('left_behind', 'pgoutput')")


def test_a_database_is_dropped_with_all_that_a_test_left_in_it(any_postgres):
    with fresh_database(any_postgres.url) as url:
        name = ask(url, "select current_database()")
        ask(url, "select pg_create_logical_replication_slot('idle', 'pgoutput')")
        ask(url, "select pg_create_logical_replication_slot('read', 'pgoutput')")
        reader = pq.PGconn.connect(f"{url}&replication=database".encode())
        command = b"START_REPLICATION SLOT read LOGICAL 0/0 (proto_version '1', publication_names 'p')"
        assert reader.exec_(command).status == pq.ExecStatus.COPY_BOTH
        open_connection = psycopg.connect(url)
        open_connection.execute("create table unfinished (id int)")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("begin; create table prepared (id int); prepare transaction 'it''s prepared'")

    reader.finish()
    open_connection.close()
    assert ask(any_postgres.url, "select count(*) from pg_database where datname = %s", name) == 0
    assert ask(any_postgres.url, "select count(*) from pg_replication_slots where database = %s", name) == 0
    assert ask(any_postgres.url, "select count(*) from pg_prepared_xacts where database = %s", name) == 0


def test_a_missing_server_skips_a_test_but_fails_it_where_all_must_be_tested(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is none"):
        skip_or_fail("there is none")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="there is none"):
        skip_or_fail("there is none")
