"""The Creek consumer against a real NATS and a real PostgreSQL: reader, sink and loader, driven batch by batch."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import call
from headwater.creek.consumer.mapping import TableMapping
from headwater.creek.consumer.statements import Place, save_stream
from headwater.creek.framing import frame
from headwater.creek.names import Kind, Names
from headwater.embedded import EmbeddedNats, EmbeddedPostgres
from headwater.errors import PositionError, SettingsError, SinkError, SinkFenced, SinkUnavailable, SnapshotFailed
from headwater.model import UNCHANGED
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync
from headwater.spark.creek_apply.keeping import keep
from headwater.spark.creek_apply.settings import ApplySettings, Mode
from headwater.spark.creek_apply.sink import prepare_target
from headwater.spark.sinks.postgres.session import kept_session
from tests.support.brokers.nats_streams import fresh_namespace
from tests.support.capture.pgoutput_writer import delete, insert, relation, truncate, update
from tests.support.creek.consumer_driver import Drive
from tests.support.creek.snapshot_answers import Answers
from tests.support.creek.stream_feed import Feed
from tests.support.servers.embedded import prepared_database

pytestmark = pytest.mark.timeout(300)

INT4, TEXT = 23, 25
ORDERS = relation(100, "orders", [("id", INT4, -1, True), ("note", TEXT, -1, False)])
ITEMS = relation(101, "items", [("id", INT4, -1, True), ("note", TEXT, -1, False)])
LOG = relation(102, "log", [("note", TEXT, -1, False)])
MAPPING = TableMapping.parse("shop.public.orders:copy.orders")


@dataclass
class Shop:
    """A feed of the database `shop`, and the target that it is to be copied to."""

    feed: Feed
    settings: ApplySettings
    url: str
    connection: psycopg.Connection[Any]
    lsn: int = 1000
    drives: list[Drive] = field(default_factory=list)

    def sql(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def change(self, *messages: bytes, xid: int = 1) -> int:
        self.lsn += 100
        self.feed.transaction(self.lsn, messages, xid=xid)
        return self.lsn

    def drive(self, **options: str) -> Drive:
        self.drives.append(Drive(self.settings, self.feed.names.stream(Kind.WAL), options))
        return self.drives[-1]

    def follow(self, *tables: str) -> None:
        for table in tables:
            self.sql("select _creek_consumer.add_table(%s)", table)

    def rows(self, table: str = "copy.orders") -> list[tuple[Any, ...]]:
        return self.sql(f"select * from {table} order by 1")  # noqa: S608 - a name in a test


def _prepare(url: str) -> None:
    """A target with what the consumer makes there, and two tables to copy to."""
    prepare_target(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create schema copy")
        connection.execute("create table copy.orders (id int primary key, note text)")
        connection.execute("create table copy.items (id int primary key, note text)")


@pytest.fixture
def shop(nats: EmbeddedNats, postgres18: EmbeddedPostgres) -> Iterator[Shop]:
    access = NatsAccess(url=nats.url, timeout=timedelta(seconds=5))
    with (
        closing(Feed(access, Names(fresh_namespace(), "shop"))) as feed,
        prepared_database(postgres18.url, _prepare) as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        settings = ApplySettings(access=access, url=url, namespace=feed.names.root, answer=timedelta(seconds=5), lanes=2)
        shop = Shop(feed, settings, url, connection)
        yield shop
        for drive in shop.drives:
            drive.close()
        kept_session(url).close()


def test_changes_of_every_kind_are_applied(shop):
    shop.follow(str(MAPPING))
    shop.change(ORDERS, insert(100, ["1", "a"]), insert(100, ["2", "b"]), insert(100, ["3", "c"]))
    shop.change(update(100, ["1", "changed"]), delete(100, ["3", None]))
    lsn = shop.change(update(100, ["9", UNCHANGED], ["2", None]))
    assert shop.drive().catch_up().changes == 6
    assert shop.rows() == [(1, "changed"), (9, "b")]
    [(applied, at)] = shop.sql("select lsn - '0/0', timestamp from _creek_consumer.subscriptions")
    assert (applied, at.year) == (lsn, 2000)


def test_a_truncate_is_applied_in_its_place(shop):
    shop.follow(str(MAPPING))
    shop.change(ORDERS, insert(100, ["1", "a"]))
    shop.change(truncate(100))
    shop.change(insert(100, ["2", "b"]))
    shop.drive().catch_up()
    assert shop.rows() == [(2, "b")]


def test_nothing_is_applied_twice_after_a_restart(shop):
    shop.sql("create table copy.log (note text)")
    shop.follow("shop.public.log:copy.log")
    shop.change(LOG, *(insert(102, [str(number)]) for number in range(20)))
    drive = shop.drive(maxRowsPerTrigger="7")
    drive.step()
    # The batch is applied, and the process dies before it says so.
    end, parts = drive.plan()
    drive.sink._move_on = lambda _end: None
    drive.deliver(end, parts)
    drive = drive.restart()
    shop.drives.append(drive)
    shop.change(insert(102, ["20"]))
    drive.catch_up()
    assert sorted(int(note) for (note,) in shop.rows("copy.log")) == list(range(21))


def test_messages_of_several_packets_survive_a_cut_between_them(shop):
    """Batches end, and processes die, where a message of one table has begun and not ended."""
    shop.follow(str(MAPPING), "shop.public.items:copy.items")
    big = "x" * 400
    shop.feed.chunk = 100
    store, waiting = shop.feed.store, []
    # The packets of orders come in between those of items.
    shop.feed.store = lambda *given: waiting.append(given)
    shop.change(ORDERS, insert(100, ["1", big]))
    shop.change(ITEMS, insert(101, ["1", big]))
    shop.feed.store = store
    wal = [given for given in waiting if ".wal." in given[0]]
    for given in waiting:
        if given not in wal:
            shop.feed.store(*given)
    _interleave(shop.feed, wal[0], wal[1])
    drive = shop.drive()
    drive.catch_up()
    assert shop.rows() == []
    _interleave(shop.feed, wal[0], wal[1], rest=True)
    drive = drive.restart()
    shop.drives.append(drive)
    drive.catch_up()
    assert shop.rows() == [(1, big)]
    assert shop.rows("copy.items") == [(1, big)]


def _interleave(feed: Feed, one: Any, other: Any, *, rest: bool = False) -> None:
    """Store the first two packets of two messages in turn, or the rest of them."""
    first, second = (frame(given[1], feed.chunk).packets for given in (one, other))
    for number in range(max(len(first), len(second))):
        for given, packets in ((one, first), (other, second)):
            if number < len(packets) and (number >= 2) == rest:
                feed.store_packets(given[0], packets.slice(number, 1), [f"{given[0]}-{number}"])


def test_a_table_that_is_added_later_catches_up_while_the_others_go_on(shop):
    shop.follow(str(MAPPING))
    shop.change(ORDERS, insert(100, ["1", "a"]))
    shop.change(ITEMS, *(insert(101, [str(number), "i"]) for number in range(30)))
    drive = shop.drive(maxRowsPerTrigger="10")
    drive.catch_up()
    shop.follow("shop.public.items:copy.items")
    with connect_sync(shop.url) as connection:
        keep(shop.settings, connection, drive.sink.epoch)
    drive.reader._refresh_at = 0.0
    shop.change(insert(100, ["2", "b"]))
    kinds = [found[0].step.is_behind for found in iter(drive.step, None) if found[0].step is not None]
    assert kinds.count(True) >= 3
    assert len(shop.rows("copy.items")) == 30
    assert shop.rows() == [(1, "a"), (2, "b")]
    assert shop.sql("select bool_or(is_behind) from _creek_consumer.subscriptions") == [(False,)]
    shop.change(insert(101, ["77", "later"]), insert(100, ["3", "c"]))
    drive.catch_up()
    assert (77, "later") in shop.rows("copy.items")


def test_a_removed_table_stays_removed_and_goes_on_exactly_when_added_again(shop):
    shop.follow(str(MAPPING), "shop.public.items:copy.items")
    shop.change(ORDERS, insert(100, ["1", "a"]))
    drive = shop.drive()
    drive.catch_up()
    shop.sql("select _creek_consumer.remove_table(%s)", str(MAPPING))
    shop.change(insert(100, ["2", "b"]), ITEMS, insert(101, ["1", "i"]))
    drive = drive.restart()
    shop.drives.append(drive)
    drive.catch_up()
    assert shop.rows() == [(1, "a")]
    assert shop.rows("copy.items") == [(1, "i")]
    shop.follow(str(MAPPING))
    drive.reader._refresh_at = 0.0
    assert drive.catch_up().changes == 1
    assert shop.rows() == [(1, "a"), (2, "b")]


def _snapshot_of(shop: Shop, rows: dict[int, str], *, xmax: int) -> str:
    """A snapshot that sees all transactions before one."""
    ids = sorted(rows)
    columns = [[str(id_) for id_ in ids], [rows[id_] for id_ in ids]]
    suffix, until = "20240101000000_000000_aaaa", shop.lsn + 1
    return shop.feed.snapshot(ORDERS, columns, suffix=suffix, lsn=shop.lsn, snapshot=f"{xmax}:{xmax}:", until=until)


def test_a_snapshot_and_the_changes_around_it_are_joined_exactly(shop):
    """Of the changes behind the snapshot in the stream, it holds the first, and not the second, which had yet to commit."""
    shop.follow(str(MAPPING))
    shop.sql("insert into copy.orders values (77, 'gone at the source')")
    shop.change(ORDERS, insert(100, ["1", "a"]), xid=10)
    drive = shop.drive()
    drive.catch_up()

    def answer(_request: object) -> str:
        topic = _snapshot_of(shop, {1: "seen", 2: "b"}, xmax=12)
        # It committed before the snapshot was taken, and is published after it.
        shop.feed.transaction(shop.lsn - 50, [update(100, ["1", "seen"]), insert(100, ["2", "b"])], xid=11)
        shop.change(update(100, ["1", "unseen"]), xid=12)
        return topic

    with Answers(shop.settings.access, shop.feed.names.snapshot_requests[0], answer):
        assert drive.loader.take(MAPPING, Mode.CLEAN).changes == 2
    assert shop.rows() == [(1, "seen"), (2, "b")]
    drive.reader._refresh_at = 0.0
    written = drive.catch_up()
    assert (written.changes, written.skipped) == (1, 2)
    assert shop.rows() == [(1, "unseen"), (2, "b")]


def test_an_upsert_keeps_rows_that_the_snapshot_does_not_have(shop):
    shop.follow(str(MAPPING))
    shop.sql("insert into copy.orders values (1, 'old'), (77, 'mine')")
    topic = _snapshot_of(shop, {1: "new", 2: "b"}, xmax=12)
    drive = shop.drive()
    drive.loader.apply(MAPPING, Mode.UPSERT, topic)
    assert shop.rows() == [(1, "new"), (2, "b"), (77, "mine")]


def test_a_snapshot_makes_the_table_if_it_is_missing(shop):
    shop.sql("drop table copy.orders")
    topic = _snapshot_of(shop, {1: "a"}, xmax=12)
    shop.drive().loader.apply(MAPPING, Mode.CLEAN, topic)
    assert shop.rows() == [(1, "a")]
    # It goes on from there once it is followed.
    shop.change(ORDERS, insert(100, ["2", "b"]), xid=13)
    shop.follow(str(MAPPING))
    drive = shop.drive()
    drive.catch_up()
    assert shop.rows() == [(1, "a"), (2, "b")]


def test_a_snapshot_of_the_original_creek_is_joined_by_position(shop):
    shop.follow(str(MAPPING))
    topic = shop.feed.snapshot(ORDERS, [["1"], ["a"]], suffix="20240101000000_000000_bbbb", lsn=1150)
    shop.change(ORDERS, update(100, ["1", "before"]))
    shop.change(update(100, ["1", "after"]))
    drive = shop.drive()
    drive.loader.apply(MAPPING, Mode.CLEAN, topic)
    drive.catch_up()
    assert shop.rows() == [(1, "after")]


def test_a_snapshot_without_an_end_is_not_loaded(shop):
    shop.sql("insert into copy.orders values (5, 'kept')")
    topic = shop.feed.snapshot(
        ORDERS, [["1"], ["a"]], suffix="20240101000000_000000_cccc", lsn=1, snapshot="5:5:", until=1, ends=False
    )
    shop.settings = ApplySettings(
        access=shop.settings.access, url=shop.url, namespace=shop.settings.namespace, answer=timedelta(seconds=1)
    )
    with pytest.raises(SnapshotFailed, match="breaks off"):
        shop.drive().loader.apply(MAPPING, Mode.CLEAN, topic)
    assert shop.rows() == [(5, "kept")]


def test_a_row_that_looks_like_an_end_is_a_row(shop):
    """`EOF` is a datum of a table with two columns of one byte each and one more."""
    three = relation(103, "three", [("id", INT4, -1, True), ("a", INT4, -1, True), ("b", INT4, -1, True)])
    # Zigzag: E, O and F are -35, -40 and 35.
    topic = shop.feed.snapshot(
        three,
        [["-35", "1"], ["-40", "2"], ["35", "3"]],
        suffix="20240101000000_000000_dddd",
        lsn=1,
        snapshot="5:5:",
        until=1,
    )
    mapping = TableMapping.parse("shop.public.three:copy.three")
    assert shop.drive().loader.apply(mapping, Mode.CLEAN, topic).changes == 2
    assert shop.rows("copy.three") == [(-35, -40, 35), (1, 2, 3)]


def test_a_refused_snapshot_says_why(shop):
    def answer(request: Any) -> str:
        raise ValueError(f"table {request['table']} is not published")

    with Answers(shop.settings.access, shop.feed.names.snapshot_requests[0], answer):
        with pytest.raises(SnapshotFailed, match="table orders is not published"):
            shop.drive().loader.take(MAPPING, Mode.CLEAN)


def test_a_snapshot_of_another_table_is_refused(shop):
    topic = _snapshot_of(shop, {1: "a"}, xmax=12)
    with pytest.raises(SettingsError, match="another table"):
        shop.drive().loader.apply(TableMapping.parse("shop.public.items:copy.items"), Mode.CLEAN, topic)


def test_an_upsert_into_a_table_without_key_is_refused(shop):
    topic = shop.feed.snapshot(LOG, [["a"]], suffix="20240101000000_000000_eeee", lsn=1, snapshot="5:5:", until=1)
    with pytest.raises(SinkError, match="use mode clean"):
        shop.drive().loader.apply(TableMapping.parse("shop.public.log:copy.log"), Mode.UPSERT, topic)


def test_a_batch_that_was_read_before_a_load_is_left_out(shop):
    """Its changes come again, from the place that the load has left."""
    shop.follow(str(MAPPING), "shop.public.items:copy.items")
    drive = shop.drive()
    drive.catch_up()
    shop.change(ORDERS, insert(100, ["1", "a"]), insert(100, ["2", "b"]), ITEMS, insert(101, ["1", "i"]), xid=10)
    found = drive.plan()
    assert found is not None
    drive.loader.apply(MAPPING, Mode.CLEAN, _snapshot_of(shop, {1: "loaded"}, xmax=10))
    written = drive.deliver(*found)
    assert (written.changes, written.skipped) == (1, 2)
    assert shop.rows() == [(1, "loaded")]
    drive.reader._refresh_at = 0.0
    drive.catch_up()
    assert shop.rows() == [(1, "a"), (2, "b")]
    assert shop.rows("copy.items") == [(1, "i")]


def test_a_table_that_lost_messages_says_so_and_the_others_go_on(shop):
    shop.follow(str(MAPPING), "shop.public.items:copy.items")
    shop.change(ORDERS, insert(100, ["1", "a"]), ITEMS, insert(101, ["1", "i"]))
    drive = shop.drive()
    drive.catch_up()
    shop.sql("select _creek_consumer.remove_table(%s)", str(MAPPING))
    shop.change(insert(100, ["2", "b"]), insert(101, ["2", "i"]))
    drive = drive.restart()
    shop.drives.append(drive)
    drive.catch_up()
    shop.change(insert(101, ["3", "i"]))
    with Link(shop.settings.access) as link:
        call(link, f"STREAM.PURGE.{shop.feed.names.stream(Kind.WAL)}", {"keep": 1})
    shop.follow(str(MAPPING))
    drive = drive.restart()
    shop.drives.append(drive)
    drive.catch_up()
    [(error,)] = shop.sql("select error from _creek_consumer.subscriptions where target = 'copy.orders'")
    assert "load a snapshot" in error and "begins at 5" in error and "from 3 on" in error
    assert [id_ for id_, _ in shop.rows("copy.items")] == [1, 2, 3]


def test_a_table_that_is_further_on_than_its_stream_misses_nothing_when_that_is_trimmed(shop):
    """The stream as a whole has lost what comes next, and the table, which was loaded behind that, has not."""
    shop.follow(str(MAPPING), "shop.public.items:copy.items")
    shop.change(ORDERS, insert(100, ["1", "a"]), ITEMS, insert(101, ["1", "i"]), xid=10)
    drive = shop.drive()
    drive.catch_up()
    shop.change(insert(101, ["2", "i"]), xid=10)
    drive.catch_up()
    for number in range(3, 7):
        shop.change(insert(101, [str(number), "not read before it is gone"]), xid=10)
    with Answers(
        shop.settings.access, shop.feed.names.snapshot_requests[0], lambda _: _snapshot_of(shop, {1: "a"}, xmax=20)
    ):
        drive.loader.take(MAPPING, Mode.CLEAN)
    drive.reader._refresh_at = 0.0
    end, _ = drive.step()
    assert end.step.settles
    shop.change(insert(100, ["9", "must arrive"]), xid=30)
    with Link(shop.settings.access) as link:
        call(link, f"STREAM.PURGE.{shop.feed.names.stream(Kind.WAL)}", {"keep": 1})
    drive = drive.restart()
    shop.drives.append(drive)
    drive.catch_up()
    shop.change(insert(100, ["10", "next"]), xid=31)
    drive.catch_up()
    assert shop.rows() == [(1, "a"), (9, "must arrive"), (10, "next")]
    errors = dict(shop.sql("select target, error from _creek_consumer.subscriptions"))
    assert errors["copy.orders"] is None and "load a snapshot" in errors["copy.items"]


def test_the_place_of_a_stream_that_is_being_read_is_left_to_its_reader(shop):
    shop.follow(str(MAPPING))
    shop.change(ORDERS, insert(100, ["1", "a"]))
    drive = shop.drive()
    drive.catch_up()
    shop.change(insert(100, ["2", "b"]))
    drive.catch_up()
    shop.change(insert(100, ["3", "c"]), insert(100, ["4", "d"]))
    stream = shop.feed.names.stream(Kind.WAL)
    with Link(shop.settings.access) as link:
        call(link, f"STREAM.PURGE.{stream}", {"keep": 1})
    before = shop.sql("select sequence from _creek_consumer.streams")
    with connect_sync(shop.url) as connection:
        keep(shop.settings, connection, drive.sink.epoch, [stream])
        assert shop.sql("select sequence from _creek_consumer.streams") == before == [(2,)]
        shop.follow(str(MAPPING))
        keep(shop.settings, connection, drive.sink.epoch)
    assert shop.sql("select sequence from _creek_consumer.streams") == [(4,)]


def test_a_run_that_was_taken_over_from_says_nothing_of_places_any_more(shop):
    shop.follow(str(MAPPING))
    shop.change(ORDERS, insert(100, ["1", "a"]))
    old = shop.drive()
    found = old.plan()
    assert found is not None
    shop.drive()
    places = "select sequence, is_behind, error from _creek_consumer.subscriptions"
    before = shop.sql(places)
    with pytest.raises(SinkFenced):
        old.sink._move_on(found[0])
    with pytest.raises(SinkFenced):
        old.sink._fail(*found[0].step.tables[0], "too late")
    # It would say that the table is missing.
    shop.sql("drop table copy.orders")
    with connect_sync(shop.url) as connection, pytest.raises(SinkFenced):
        keep(shop.settings, connection, old.sink.epoch)
    assert shop.sql(places) == before


def test_the_place_in_a_stream_does_not_move_back(shop):
    with connect_sync(shop.url) as connection:
        for place in (Place("s", "one", 5, {"t": 4}), Place("s", "one", 3)):
            execute_sync(connection, save_stream(0, place))
        assert shop.sql("select identity, sequence, begun from _creek_consumer.streams") == [("one", 5, {"t": 4})]
        execute_sync(connection, save_stream(0, Place("s", "two", 1)))
    assert shop.sql("select identity, sequence, begun from _creek_consumer.streams") == [("two", 1, {})]


def test_a_snapshot_from_before_its_stream_was_made_anew_is_refused(shop):
    shop.follow(str(MAPPING))
    shop.change(ORDERS, insert(100, ["1", "a"]), xid=10)
    topic = _snapshot_of(shop, {1: "a"}, xmax=11)
    shop.change(insert(100, ["2", "lost with the stream"]), xid=12)
    with Link(shop.settings.access) as link:
        call(link, f"STREAM.DELETE.{shop.feed.names.stream(Kind.WAL)}", {})
    again = Feed(shop.settings.access, shop.feed.names)
    with pytest.raises(PositionError, match="take a new snapshot"):
        shop.drive().loader.apply(MAPPING, Mode.CLEAN, topic)
    assert shop.rows() == []
    again.close()


def test_after_the_changes_that_follow_a_snapshot_low_positions_are_applied_again(shop):
    """The source was restored into another server, whose positions and transactions begin anew."""
    shop.follow(str(MAPPING))
    shop.lsn = 100_000
    shop.change(ORDERS, insert(100, ["1", "a"]), xid=900)
    topic = _snapshot_of(shop, {1: "a"}, xmax=901)
    shop.change(insert(100, ["2", "b"]), xid=902)
    drive = shop.drive()
    drive.loader.apply(MAPPING, Mode.CLEAN, topic)
    # In one batch with the first change behind the snapshot, and in a later one.
    shop.feed.transaction(2000, [insert(100, ["3", "c"])], xid=700)
    drive.catch_up()
    assert shop.rows() == [(1, "a"), (2, "b"), (3, "c")]
    joins = "select snapshot, until_lsn, skip_lsn from _creek_consumer.subscriptions"
    assert shop.sql(joins) == [(None, None, None)]
    shop.feed.transaction(2100, [insert(100, ["4", "d"])], xid=701)
    drive.catch_up()
    assert (4, "d") in shop.rows()


def test_a_join_is_kept_until_a_change_behind_the_snapshot_is_applied(shop):
    shop.follow(str(MAPPING))
    shop.change(ORDERS, insert(100, ["1", "a"]), xid=10)
    topic = shop.feed.snapshot(ORDERS, [["1"], ["a"]], suffix="20240101000000_000000_ffff", lsn=shop.lsn)
    drive = shop.drive()
    drive.loader.apply(MAPPING, Mode.CLEAN, topic)
    drive.catch_up()
    [(kept,)] = shop.sql("select skip_lsn - '0/0' from _creek_consumer.subscriptions")
    assert kept == shop.lsn
    shop.change(insert(100, ["2", "b"]), xid=11)
    drive.catch_up()
    assert shop.sql("select skip_lsn from _creek_consumer.subscriptions") == [(None,)]
    assert shop.rows() == [(1, "a"), (2, "b")]


def test_a_stream_that_was_made_anew_is_noticed(shop):
    shop.follow(str(MAPPING))
    shop.change(ORDERS, insert(100, ["1", "a"]))
    shop.drive().catch_up()
    with Link(shop.settings.access) as link:
        call(link, f"STREAM.DELETE.{shop.feed.names.stream(Kind.WAL)}", {})
    feed = Feed(shop.settings.access, shop.feed.names)
    shop.drive()
    [(error,)] = shop.sql("select error from _creek_consumer.subscriptions")
    assert "deleted and made anew" in error
    feed.close()


def test_a_table_that_the_target_does_not_take_stays_behind_alone(shop):
    shop.follow(str(MAPPING), "shop.public.items:copy.items")
    drive = shop.drive()
    drive.catch_up()
    shop.sql("drop table copy.orders")
    shop.change(ORDERS, insert(100, ["1", "a"]), ITEMS, insert(101, ["1", "i"]))
    drive.catch_up()
    assert shop.rows("copy.items") == [(1, "i")]
    [(error,)] = shop.sql("select error from _creek_consumer.subscriptions where target = 'copy.orders'")
    assert "missing in the target" in error
    # Made again, and added again, it goes on where it was.
    shop.sql("create table copy.orders (id int primary key, note text)")
    shop.follow(str(MAPPING))
    drive.reader._refresh_at = 0.0
    drive.catch_up()
    assert shop.rows() == [(1, "a")]


def test_a_row_that_the_target_refuses_becomes_a_dead_letter(shop):
    shop.sql("alter table copy.orders add check (note <> 'bad')")
    shop.follow(str(MAPPING))
    shop.change(ORDERS, insert(100, ["1", "a"]), insert(100, ["2", "bad"]), insert(100, ["3", "c"]))
    written = shop.drive().catch_up()
    assert (written.changes, written.letters) == (2, 1)
    assert [id_ for id_, _ in shop.rows()] == [1, 3]
    assert shop.sql("select pipeline, table_name, key from headwater.dead_letter") == [("creek", "orders", {"id": 2})]


def test_a_message_that_cannot_be_read_becomes_a_dead_letter(shop):
    shop.follow(str(MAPPING))
    shop.change(ORDERS, insert(100, ["1", "a"]))
    subject = shop.feed.names.subject(Kind.WAL, "public", "orders")
    shop.feed.store(subject, pa.array([b"nonsense"], pa.binary()), ["nonsense"])
    shop.change(insert(100, ["2", "b"]))
    written = shop.drive().catch_up()
    assert (written.changes, written.letters) == (2, 1)
    assert shop.rows() == [(1, "a"), (2, "b")]
    [(op, reason)] = shop.sql("select op, reason from headwater.dead_letter")
    assert op == "?" and "no message of Creek" in reason


def test_a_message_of_others_becomes_a_dead_letter_and_holds_no_table_up(shop):
    shop.follow(str(MAPPING), "shop.public.items:copy.items")
    shop.change(ORDERS, insert(100, ["1", "a"]))
    subject = shop.feed.names.subject(Kind.WAL, "public", "orders")
    shop.feed.store(subject, pa.array([b'{"before":null,"after":{"id":1}}'], pa.binary()), ["others"])
    shop.change(insert(100, ["2", "b"]), ITEMS, insert(101, ["1", "i"]))
    written = shop.drive().catch_up()
    assert (written.changes, written.letters) == (3, 1)
    assert shop.rows() == [(1, "a"), (2, "b")]
    assert shop.rows("copy.items") == [(1, "i")]


def test_a_schema_that_stays_unknown_leaves_its_table_behind_alone(shop):
    shop.settings = replace(shop.settings, access=replace(shop.settings.access, timeout=timedelta(seconds=1)))
    shop.follow(str(MAPPING), "shop.public.items:copy.items")
    shop.change(ORDERS, insert(100, ["1", "a"]))
    drive = shop.drive()
    drive.catch_up()
    known, more = (
        ORDERS,
        relation(100, "orders", [("id", INT4, -1, True), ("note", TEXT, -1, False), ("n", INT4, -1, False)]),
    )
    store = shop.feed.store
    waiting: list[tuple[Any, ...]] = []

    def without_schemas(subject: str, *given: Any) -> None:
        (waiting.append if "schema" in subject else lambda one: store(*one))((subject, *given))

    shop.feed.store = without_schemas
    shop.change(more, insert(100, ["2", "b", "7"]))
    shop.feed.store = store
    shop.change(known, ITEMS, insert(101, ["1", "i"]))
    drive.catch_up()
    assert shop.rows("copy.items") == [(1, "i")]
    assert shop.rows() == [(1, "a")]
    [(error,)] = shop.sql("select error from _creek_consumer.subscriptions where target = 'copy.orders'")
    assert "no producer tells it" in error and "start the producer of database 'shop'" in error
    # Once it is there, and the table is added again, it goes on where it was.
    for given in waiting:
        store(*given)
    shop.follow(str(MAPPING))
    drive.reader._refresh_at = 0.0
    drive.catch_up()
    assert [row[:2] for row in shop.rows()] == [(1, "a"), (2, "b")]


def test_a_new_column_is_followed_and_old_rows_are_asked_for(shop):
    wider = relation(100, "orders", [("id", INT4, -1, True), ("note", TEXT, -1, False), ("more", TEXT, -1, False)])
    shop.follow(str(MAPPING))
    shop.change(ORDERS, insert(100, ["1", "a"]))
    drive = shop.drive()
    drive.catch_up()
    shop.change(wider, insert(100, ["2", "b", "c"]))
    drive.catch_up()
    assert shop.rows() == [(1, "a", None), (2, "b", "c")]
    with connect_sync(shop.url) as connection:
        keep(shop.settings, connection, drive.sink.epoch)
        keep(shop.settings, connection, drive.sink.epoch)
    assert shop.sql("select kind, target, mode from _creek_consumer.requests") == [("snapshot", "copy.orders", "upsert")]


def test_two_targets_may_follow_one_table(shop):
    shop.follow(str(MAPPING), "shop.public.orders:copy.items")
    shop.change(ORDERS, insert(100, ["1", "a"]))
    shop.drive().catch_up()
    assert shop.rows() == shop.rows("copy.items") == [(1, "a")]


@pytest.mark.parametrize("table", ["orders", "items"])
def test_a_target_that_was_set_back_is_gone_on_with_from_there(shop, table):
    """A standby that lagged is promoted: what it lacks is applied again, also if the next batch has nothing of the table."""
    shop.follow(str(MAPPING), "shop.public.items:copy.items")
    shop.change(ORDERS, insert(100, ["1", "a"]), ITEMS)
    drive = shop.drive()
    drive.catch_up()
    shop.change(insert(100, ["2", "b"]))
    drive.catch_up()
    for name in ("subscriptions", "streams"):
        shop.sql(f"create table saved_{name} as table _creek_consumer.{name}")
    shop.change(insert(100, ["3", "c"]))
    drive.catch_up()
    shop.sql("delete from copy.orders where id = 3")
    for name in ("subscriptions", "streams"):
        shop.sql(f"delete from _creek_consumer.{name}")  # noqa: S608 - a name in a test
        shop.sql(f"insert into _creek_consumer.{name} table saved_{name}")
    shop.change(insert(100, ["4", "d"]) if table == "orders" else insert(101, ["4", "d"]))
    with pytest.raises(SinkUnavailable, match="gone on with from there"):
        drive.catch_up()
    drive = drive.restart()
    shop.drives.append(drive)
    drive.catch_up()
    assert [id_ for id_, _ in shop.rows()] == ([1, 2, 3, 4] if table == "orders" else [1, 2, 3])


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_target_equals_the_source(shop, seed):
    """A random source, with transactions that overlap, snapshots at any time, and processes that die anywhere."""
    Story(shop, random.Random(seed)).run()


class Story:
    """What happens at a source, at its producer and at the consumer, in any order that can be."""

    def __init__(self, shop: Shop, chance: random.Random) -> None:
        self.shop, self.chance = shop, chance
        self.rows: dict[int, str] = {}
        # Committed and not yet published, in the order of commits: position, transaction, messages.
        self.queue: list[tuple[int, int, list[bytes]]] = []
        self.running: dict[int, list[tuple[str, int, str]]] = {}
        self.next_xid, self.lsn, self.snapshots = 10, 10_000, 0

    def run(self) -> None:
        shop = self.shop
        shop.sql("create table copy.log (note text)")
        shop.follow(str(MAPPING), "shop.public.items:copy.items")
        shop.change(ORDERS)
        drive = shop.drive(maxRowsPerTrigger=str(self.chance.choice([1, 3, 50])))
        with Answers(shop.settings.access, shop.feed.names.snapshot_requests[0], self.answer):
            for _ in range(60):
                drive = self.chance.choice(
                    [self.write, self.write, self.publish, self.publish, self.load, self.apply, self.die]
                )(drive)
            for xid in list(self.running):
                self.commit(xid)
            while self.queue:
                self.publish(drive)
            drive.reader._refresh_at = 0.0
            drive.catch_up()
        assert dict(shop.rows()) == self.rows
        assert shop.sql("select count(*) from headwater.dead_letter") == [(0,)]

    def write(self, drive: Drive) -> Drive:
        """A transaction does something, begins, or commits; a row belongs to one transaction at a time."""
        if not self.running or self.chance.random() < 0.3:
            self.running[self.next_xid] = []
            self.next_xid += 1
        xid = self.chance.choice(list(self.running))
        taken = {id_ for other, changes in self.running.items() if other != xid for _, id_, _ in changes}
        id_ = self.chance.choice([number for number in range(1, 12) if number not in taken])
        self.running[xid].append((self.chance.choice(["put", "put", "drop"]), id_, f"{xid}-{len(self.running[xid])}"))
        if self.chance.random() < 0.5:
            self.commit(xid)
        return drive

    def commit(self, xid: int) -> None:
        messages = []
        for kind, id_, note in self.running.pop(xid):
            if kind == "put":
                is_there = id_ in self.rows
                messages.append(update(100, [str(id_), note]) if is_there else insert(100, [str(id_), note]))
                self.rows[id_] = note
            elif self.rows.pop(id_, None) is not None:
                messages.append(delete(100, [str(id_), None]))
        self.lsn += 10
        if messages:
            self.queue.append((self.lsn, xid, messages))

    def publish(self, drive: Drive) -> Drive:
        if self.queue:
            lsn, xid, messages = self.queue.pop(0)
            self.shop.feed.transaction(lsn, messages, xid=xid)
        return drive

    def load(self, drive: Drive) -> Drive:
        if self.chance.random() < 0.6:
            drive.loader.take(MAPPING, Mode.CLEAN)
        return drive

    def answer(self, _request: object) -> str:
        """Some of what has committed is published before the snapshot is, some after; and more commits meanwhile."""
        self.snapshots += 1
        running = sorted(self.running)
        xmax = self.next_xid
        snapshot = f"{min([xmax, *running])}:{xmax}:{','.join(map(str, running))}"
        ids = sorted(self.rows)
        columns = [[str(id_) for id_ in ids], [self.rows[id_] for id_ in ids]]
        until = self.lsn + 1
        for xid in running[: self.chance.randrange(2)]:
            self.commit(xid)
        for _ in range(self.chance.randrange(3)):
            self.publish(self.shop.drives[-1])
        suffix = f"20240101000000_{self.snapshots:06}_abcd"
        return self.shop.feed.snapshot(ORDERS, columns, suffix=suffix, lsn=until, snapshot=snapshot, until=until)

    def apply(self, drive: Drive) -> Drive:
        drive.reader._refresh_at = 0.0 if self.chance.random() < 0.5 else drive.reader._refresh_at
        for _ in range(self.chance.randrange(4)):
            drive.step()
        return drive

    def die(self, drive: Drive) -> Drive:
        if self.chance.random() < 0.5:
            # In the midst of a batch: it was applied, and nobody has said so.
            found = drive.plan()
            if found is not None:
                drive.sink._move_on = lambda end: None  # type: ignore[method-assign]
                drive.deliver(*found)
        drive = drive.restart()
        self.shop.drives.append(drive)
        return drive
