"""`headwater creek apply` against a real NATS and a real target."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from headwater.brokers.nats.access import NatsAccess
from headwater.creek.names import Names
from headwater.embedded import EmbeddedNats
from headwater.spark.sinks.postgres.session import kept_session
from tests.support.brokers.nats_streams import fresh_namespace
from tests.support.capture.pgoutput_writer import insert, relation, update
from tests.support.creek.snapshot_answers import Answers
from tests.support.creek.stream_feed import Feed

pytestmark = pytest.mark.timeout(300)

INT4, TEXT, NUMERIC, MOMENTS = 23, 25, 1700, 1185
ORDERS = relation(100, "orders", [("id", INT4, -1, True), ("note", TEXT, -1, False)])
MAPPING = "shop.public.orders:copy.orders"


@pytest.fixture
def feed(nats: EmbeddedNats) -> Iterator[Feed]:
    feed = Feed(NatsAccess(url=nats.url, timeout=timedelta(seconds=5)), Names(fresh_namespace(), "shop"))
    yield feed
    feed.close()


@pytest.fixture
def apply(headwater, feed, database, monkeypatch):
    """Run a command of the consumer, as its environment has it."""
    known = {"NATS_URI": feed.access.url, "NATS_NAMESPACE": feed.names.root, "DB_URI": database, "NATS_TIMEOUT": "5s"}
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    yield lambda *arguments: headwater("--log-level", "error", "creek", "apply", *arguments)
    kept_session(database).close()


@pytest.fixture
def on_spark(spark, monkeypatch):
    """Commands run on the session that tests share."""

    @contextmanager
    def session(settings):
        from headwater.spark.creek_apply.sink import prepare_target

        prepare_target(settings.url)
        yield spark

    monkeypatch.setattr("headwater.cli.creek.apply._spark", session)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def test_tables_are_added_listed_and_removed(apply, database):
    assert apply("add-tables", MAPPING, 'shop.public."a.b"') == (
        0,
        'shop.public.orders: followed\nshop.public."a.b": followed\n',
        "",
    )
    code, out, _ = apply("list-tables", "--json")
    found = json.loads(out)
    assert code == 0
    assert [(one["topic"], one["target"], one["state"]) for one in found] == [
        ("shop.public.orders", "copy.orders", "to be begun"),
        ('shop.public."a.b"', 'public."a.b"', "to be begun"),
    ]
    assert apply("remove-tables", MAPPING) == (0, "shop.public.orders: not followed any more\n", "")
    code, out, _ = apply("list-tables")
    assert "not followed" in out.splitlines()[1]
    assert rows(database, "select active from _creek_consumer.subscriptions where target = 'copy.orders'") == [(False,)]


def test_a_table_that_is_not_followed_cannot_be_removed(apply):
    code, _, err = apply("remove-tables", "shop.public.nothing")
    assert code == 1
    assert "is not subscribed to" in err


def test_what_is_no_mapping_is_wrong_usage(apply):
    code, _, err = apply("add-tables", "orders")
    assert code == 2
    assert "no mapping of a table" in err


@pytest.mark.parametrize(("missing", "command"), [("DB_URI", "list-tables"), ("NATS_URI", "serve")])
def test_what_is_not_set_is_named(apply, monkeypatch, missing, command):
    monkeypatch.delenv(missing)
    code, _, err = apply(command)
    assert code == 2
    assert f"{missing} is not set" in err


def test_no_secret_is_shown_when_a_server_is_away(apply, monkeypatch):
    monkeypatch.setenv("DB_URI", "postgresql://me:verysecret@127.0.0.1:1/nowhere")
    code, out, err = apply("list-tables")
    assert code == 1
    assert "verysecret" not in out + err
    monkeypatch.setenv("NATS_URI", "nats://me:verysecret@127.0.0.1:1")
    code, out, err = apply("list-snapshots", "shop.public.orders")
    assert code == 1
    assert "verysecret" not in out + err


def test_tables_are_made_from_their_schemas(apply, feed, database):
    table = relation(
        100,
        "Odd Names",
        [
            ("id", INT4, -1, True),
            ("a b", TEXT, -1, False),
            ("price", NUMERIC, ((10 << 16) | 2) + 4, False),
            ("at", MOMENTS, -1, False),
        ],
    )
    feed.transaction(1000, [table, insert(100, ["1", "x", "1.50", "{}"])])
    mapping = 'shop.public.Odd Names:copy."Odd.Names"'
    assert apply("create-schemas", mapping) == (0, 'copy."Odd.Names": made\n', "")
    assert apply("create-schemas", mapping) == (0, 'copy."Odd.Names": is there already\n', "")
    query = """select attname, format_type(atttypid, atttypmod), attnotnull from pg_attribute
                where attrelid = 'copy."Odd.Names"'::regclass and attnum > 0 order by attnum"""
    assert rows(database, query) == [
        ("id", "integer", True),
        ("a b", "text", False),
        ("price", "numeric(10,2)", False),
        ("at", "timestamp with time zone[]", False),
    ]
    code, _, err = apply("create-schemas", "shop.public.quiet")
    assert code == 1
    assert "no schema of table shop.public.quiet" in err


def test_snapshots_are_listed_of_a_mapping_whose_names_are_quoted(apply, feed):
    odd = relation(101, "a:b.c", [("id", INT4, -1, True)])
    topic = feed.snapshot(odd, [["1"]], suffix="20230830120102_123456_ab12", lsn=5)
    for table in ('shop.public."a:b.c"', 'shop.public."a:b.c":copy.orders', '"shop".public."a:b.c":"copy"."x:y"'):
        code, out, _ = apply("list-snapshots", "--json", table)
        assert (code, [one["name"] for one in json.loads(out)]) == (0, [topic])


def test_snapshots_are_listed(apply, feed):
    topic = feed.snapshot(ORDERS, [["1", "2"], ["a", "b"]], suffix="20230830120102_123456_ab12", lsn=5)
    code, out, _ = apply("list-snapshots", "--json", "shop.public.orders")
    assert code == 0
    assert json.loads(out) == [{"name": topic, "at": "2023-08-30 12:01:02.123456+00:00", "messages": 2}]


@pytest.mark.timeout(300)
def test_a_table_is_made_loaded_and_followed(apply, on_spark, feed, database):
    """The way that creek-pg-client's README shows."""
    feed.transaction(1000, [ORDERS, insert(100, ["1", "a"])], xid=10)
    assert apply("create-schemas", MAPPING)[0] == 0
    assert apply("add-tables", MAPPING)[0] == 0

    def answer(_request):
        topic = feed.snapshot(
            ORDERS, [["1", "2"], ["b", "c"]], suffix="20240101000000_000000_aaaa", lsn=2000, snapshot="13:13:", until=2000
        )
        feed.transaction(1500, [update(100, ["1", "b"])], xid=12)
        feed.transaction(2500, [insert(100, ["3", "d"])], xid=13)
        return topic

    with Answers(feed.access, feed.names.snapshot_requests[0], answer):
        assert apply("snapshot", "--mode", "clean", MAPPING) == (0, "copy.orders: 2 rows loaded\n", "")
    assert rows(database, "select * from copy.orders order by 1") == [(1, "b"), (2, "c")]
    assert apply("serve", "--once") == (0, "", "")
    assert rows(database, "select * from copy.orders order by 1") == [(1, "b"), (2, "c"), (3, "d")]
    # By SQL, and by the name of a snapshot that was taken before; what has been applied since is applied again.
    topic = f"{feed.names.root}.shop.snap.public.orders.20240101000000_000000_aaaa"
    rows(database, f"select _creek_consumer.apply_snapshot('{topic}', '{MAPPING}', 'clean')")
    rows(database, "delete from copy.orders")
    assert apply("serve", "--once") == (0, "", "")
    assert rows(database, "select * from copy.orders order by 1") == [(1, "b"), (2, "c"), (3, "d")]
    assert rows(database, "select state, error from _creek_consumer.requests") == [("done", None)]
    assert rows(database, "select status from _creek_consumer._notification_log where command like 'APPLY_SNAP%'") == [
        ("ok",)
    ]


@pytest.mark.timeout(300)
def test_a_table_that_was_left_is_tried_again_at_the_next_start_and_its_state_is_the_exit_code(
    apply, on_spark, feed, database
):
    feed.transaction(1000, [ORDERS, insert(100, ["1", "a"])], xid=10)
    assert apply("add-tables", MAPPING)[0] == 0

    code, _, err = apply("serve", "--once")
    assert (code, "1 of the tables are left where they are: copy.orders: table copy.orders is missing" in err) == (1, True)
    assert apply("create-schemas", MAPPING)[0] == 0

    assert apply("serve", "--once") == (0, "", "")
    assert rows(database, "select * from copy.orders") == [(1, "a")]


@pytest.mark.timeout(300)
def test_a_snapshot_that_fails_keeps_no_other_from_being_loaded(apply, on_spark, feed, database):
    feed.transaction(1000, [ORDERS, insert(100, ["1", "a"])], xid=10)
    rows(database, "create schema copy")
    rows(database, "create table copy.wrong (other int primary key)")
    assert apply("create-schemas", MAPPING)[0] == 0
    suffixes = iter(["20240101000000_000000_aaaa", "20240101000001_000000_bbbb"])

    def answer(_request):
        return feed.snapshot(ORDERS, [["1"], ["b"]], suffix=next(suffixes), lsn=2000, snapshot="13:13:", until=2000)

    with Answers(feed.access, feed.names.snapshot_requests[0], answer):
        code, out, err = apply("snapshot", "shop.public.orders:copy.wrong", MAPPING)

    assert (code, out) == (1, "copy.orders: 1 rows loaded\n")
    assert err.startswith("error: copy.wrong: ")
