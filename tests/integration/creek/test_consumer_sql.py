"""The SQL API of the Creek consumer, in a real target."""

import psycopg
import pytest

from headwater.creek.consumer import statements
from headwater.creek.consumer.mapping import TableMapping
from headwater.creek.consumer.statements import SCHEMA, Place
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.migrate import Component, migrate
from headwater.postgres.statements import execute_sync, fetch_sync

COMPONENT = Component.of("headwater.creek.consumer", schema=SCHEMA)
ORDERS = TableMapping.parse("shop.public.orders:copy.orders")
# What creek-pg-client makes.
ORIGINAL = """
create schema _creek_consumer;
create table _creek_consumer.subscriptions (
    topic text, target text primary key, lsn pg_lsn, timestamp timestamptz, active bool
);
create table _creek_consumer._notification_log (timestamp timestamptz primary key default now(), command text, status text);
create function _creek_consumer.add_table(tbl text) returns void language plpgsql as $$ begin perform 1; end $$;
create function _creek_consumer.snapshot(tbl text, m text) returns void language plpgsql as $$ begin perform 1; end $$;
insert into _creek_consumer.subscriptions values ('shop.public.orders', 'copy.orders', '0/500', now(), true);
"""


@pytest.fixture
def connection(any_database):
    with connect_sync(any_database) as connection:
        migrate(connection, COMPONENT)
        yield connection


def only(connection: Connection) -> statements.Subscription:
    [one] = fetch_sync(connection, statements.list_subscriptions())
    return one


def test_adding_and_removing_is_said_on_creeks_channel(connection):
    execute_sync(connection, statements.listen())
    execute_sync(connection, statements.add_table(ORDERS))
    execute_sync(connection, statements.remove_table(ORDERS))
    connection.execute("select _creek_consumer.create_schema('shop.public.orders')")
    connection.execute("select _creek_consumer.snapshot('shop.public.orders', 'clean')")
    connection.execute("select _creek_consumer.apply_snapshot('a.topic', 'shop.public.orders', 'upsert')")
    heard = [one.payload for one in connection.notifies(timeout=5, stop_after=5)]
    assert heard == [
        "ADD shop.public.orders:copy.orders",
        "REMOVE shop.public.orders:copy.orders",
        "CREATE shop.public.orders",
        "SNAP clean shop.public.orders",
        "APPLY_SNAP upsert a.topic shop.public.orders",
    ]


def test_several_commands_of_one_transaction_are_all_logged(connection):
    with connection.transaction():
        for table in ("a", "b", "c"):
            connection.execute("select _creek_consumer.add_table(%s)", [f"shop.public.{table}"])
    found = connection.execute(
        'select command, status from _creek_consumer._notification_log order by "timestamp"'
    ).fetchall()
    assert found == [(f"ADD shop.public.{table}", "ok") for table in "abc"]


def test_names_are_stored_as_python_writes_them(connection):
    for text in ('shop."a.b"."C ""d""":x."y:z"', "Shop.public.Orders", 'shop.public." blank "'):
        mapping = TableMapping.parse(text)
        execute_sync(connection, statements.add_table(mapping))
        found = {one.target: one for one in fetch_sync(connection, statements.list_subscriptions())}
        assert found[str(mapping.target)].topic == str(mapping.topic)
        assert found[str(mapping.target)].mapping == mapping


@pytest.mark.parametrize("text", ["orders", "public.orders", "a.b.c:d", 'a.b."c', ""])
def test_what_is_no_mapping_is_refused(connection, text):
    with pytest.raises(psycopg.errors.RaiseException, match="is no mapping of a table"):
        connection.execute("select _creek_consumer.add_table(%s)", [text])


def test_an_unknown_mode_is_refused(connection):
    with pytest.raises(psycopg.errors.RaiseException, match="mode all is not known"):
        connection.execute("select _creek_consumer.snapshot('shop.public.orders', 'all')")


def test_adding_a_table_again_changes_nothing_and_another_topic_begins_anew(connection):
    execute_sync(connection, statements.add_table(ORDERS))
    execute_sync(connection, statements.place_subscription("copy.orders", Place("CREEK_wal", "then", 7)))
    before = only(connection)
    execute_sync(connection, statements.add_table(ORDERS))
    assert only(connection) == before
    execute_sync(connection, statements.add_table(TableMapping.parse("other.public.orders:copy.orders")))
    after = only(connection)
    assert (after.topic, after.sequence, after.is_behind) == ("other.public.orders", None, True)
    assert after.generation > before.generation


def test_a_removed_table_keeps_the_place_that_its_stream_was_at(connection):
    execute_sync(connection, statements.add_table(ORDERS))
    execute_sync(connection, statements.place_subscription("copy.orders", Place("CREEK_wal", "then", 7)))
    here = Place("CREEK_wal", "then", 9, {"shop.public.orders": 8})
    execute_sync(
        connection, statements.advance_subscriptions([(ORDERS, only(connection).generation)], 7, here, is_settled=True)
    )
    later = Place("CREEK_wal", "then", 20, {"shop.public.orders": 18, "shop.public.items": 3})
    execute_sync(connection, statements.save_stream(9, later))
    execute_sync(connection, statements.remove_table(ORDERS))
    execute_sync(connection, statements.save_stream(20, Place("CREEK_wal", "then", 50)))
    execute_sync(connection, statements.add_table(ORDERS))
    assert only(connection).place == Place("CREEK_wal", "then", 20, {"shop.public.orders": 18})


def test_a_table_that_has_begun_anew_is_not_said_to_have_come_further(connection):
    execute_sync(connection, statements.add_table(ORDERS))
    execute_sync(connection, statements.place_subscription("copy.orders", Place("CREEK_wal", "then", 7)))
    old = only(connection).generation - 1
    execute_sync(
        connection, statements.advance_subscriptions([(ORDERS, old)], 7, Place("CREEK_wal", "then", 9), is_settled=True)
    )
    assert (only(connection).sequence, only(connection).is_behind) == (7, True)


def test_requests_are_taken_in_order_and_those_of_a_dead_run_again(connection):
    for mode in ("clean", "upsert"):
        connection.execute("select _creek_consumer.snapshot('shop.public.orders', %s)", [mode])
    [first] = fetch_sync(connection, statements.take_request())
    execute_sync(connection, statements.return_requests())
    [again] = fetch_sync(connection, statements.take_request())
    assert (first.id, first.mode, first.mapping) == (again.id, "clean", TableMapping.parse("shop.public.orders"))
    fetch_sync(connection, statements.end_request(again, "no such table"))
    [second] = fetch_sync(connection, statements.take_request())
    fetch_sync(connection, statements.end_request(second, None))
    assert fetch_sync(connection, statements.take_request()) == []
    found = connection.execute("select state, error from _creek_consumer.requests order by id").fetchall()
    assert found == [("failed", "no such table"), ("done", None)]
    logged = connection.execute('select status from _creek_consumer._notification_log order by "timestamp"').fetchall()
    assert logged == [("no such table",), ("ok",)]


def test_what_creek_pg_client_has_left_is_taken_over(any_database):
    with connect_sync(any_database) as connection:
        connection.execute(ORIGINAL)
        migrate(connection, COMPONENT)
        execute_sync(connection, statements.place_subscription("copy.orders", Place("CREEK_wal", "then", 0)))
        one = only(connection)
        # It does not know where in the stream it was, but what it had.
        assert one.join.skip_lsn == one.lsn
        assert one.is_active and one.place == Place("CREEK_wal", "then", 0)


def test_a_target_that_was_set_back_is_noticed(connection):
    """By a standby that lagged, or a backup: what it lacks must not be taken for applied."""
    assert fetch_sync(connection, statements.save_stream(0, Place("CREEK_wal", "then", 5))) == []
    assert fetch_sync(connection, statements.save_stream(5, Place("CREEK_wal", "then", 9), is_known=True)) == []
    assert fetch_sync(connection, statements.save_stream(12, Place("CREEK_wal", "then", 20), is_known=True)) == ["CREEK_wal"]
    connection.execute("delete from _creek_consumer.streams")
    assert fetch_sync(connection, statements.save_stream(9, Place("CREEK_wal", "then", 20), is_known=True)) == ["CREEK_wal"]
    execute_sync(connection, statements.add_table(ORDERS))
    execute_sync(connection, statements.place_subscription("copy.orders", Place("CREEK_wal", "then", 7)))
    mine, here = [(ORDERS, only(connection).generation)], Place("CREEK_wal", "then", 12)
    assert fetch_sync(connection, statements.advance_subscriptions(mine, 9, here, is_settled=False)) == ["copy.orders"]
    assert fetch_sync(connection, statements.advance_subscriptions(mine, 12, here, is_settled=False)) == []
