"""Which rows a recovery reads, in which order and parts, by real snapshots of a real server."""

from contextlib import closing
from itertools import pairwise

import pytest

from headwater import outbox
from headwater.model import Snapshot
from headwater.outbox import OutboxColumns, check_mapping
from headwater.outbox.recovery import Choice, Gap, is_foreign, list_cuts, read_again, read_part
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.stream import SESSION
from headwater.postgres.statements import fetch_sync


class Outbox:
    """An outbox on a connection, and what is read of it."""

    def __init__(self, url):
        self.url, self.connection = url, connect_sync(url)
        for statement in SESSION:
            self.connection.execute(statement.encode())
        self.table = check_mapping(self.connection, "headwater.outbox_message", OutboxColumns.headwater())

    def publish(self, *numbers, connection=None):
        connection = connection or self.connection
        with connection.transaction():
            for number in numbers:
                outbox.publish_sync(connection, "t", "T", number, key=f"k{number % 5}")

    def snapshot(self):
        ((text,),) = self.connection.execute("select pg_current_snapshot()::text")
        return Snapshot.parse(text)

    def cuts(self, gap, after=None, size=1000):
        return fetch_sync(self.connection, list_cuts(self.table, gap, after, size))

    def read(self, gap, after, last, lane=None):
        names = self.table.columns.names
        place = names.index("payload")
        return [int(row[place]) for row in self.connection.execute(read_part(self.table, gap, after, last, lane))]

    def all(self, gap):
        (cut,) = self.cuts(gap) or [None]
        return [] if cut is None else self.read(gap, None, cut.key)


@pytest.fixture
def shop(any_outbox_url):
    shop = Outbox(any_outbox_url)
    with closing(shop.connection):
        yield shop


def test_exactly_what_lies_between_two_snapshots_is_read_without_what_was_delivered_since(shop):
    with closing(connect_sync(shop.url)) as other, closing(connect_sync(shop.url)) as third:
        shop.publish(1, 2)
        other.autocommit = third.autocommit = False
        outbox.publish_sync(other, "t", "T", 3)
        outbox.publish_sync(third, "t", "T", 4)
        before = shop.snapshot()
        shop.publish(5)
        (xid,) = shop.connection.execute("select max(xid::text::bigint) from headwater.outbox_message").fetchone()
        other.commit()
        shop.publish(6)
        after = shop.snapshot()
        third.commit()
        shop.publish(7)
    assert sorted(shop.all(Gap(after, before))) == [3, 5, 6]
    assert sorted(shop.all(Gap(after, before, delivered=(xid,)))) == [3, 6]
    assert sorted(shop.all(Gap(after))) == [1, 2, 3, 5, 6]


def test_parts_are_read_in_the_order_of_time_and_make_up_the_whole(shop):
    for number in range(25):
        shop.publish(number)
    gap = Gap(shop.snapshot())
    cuts = shop.cuts(gap, size=10)
    assert [cut.rows for cut in cuts] == [10, 10, 5]
    ends = [None, *(cut.key for cut in cuts)]
    parts = [shop.read(gap, after, last) for after, last in pairwise(ends)]
    assert [number for part in parts for number in part] == list(range(25))
    assert [cut.key for cut in shop.cuts(gap, cuts[0].key, 10)] == [cuts[1].key, cuts[2].key]


def test_lanes_have_whole_keys_and_together_all_rows(shop):
    shop.publish(*range(40))
    gap = Gap(shop.snapshot())
    (cut,) = shop.cuts(gap)
    lanes = [shop.read(gap, None, cut.key, (lane, 3)) for lane in range(3)]
    assert sorted(number for lane in lanes for number in lane) == list(range(40))
    for lane in lanes:
        assert lane == sorted(lane)
        assert all({n for n in range(40) if n % 5 == number % 5} <= set(lane) for number in lane)


def test_times_are_ordered_as_times_and_not_as_texts(shop):
    for number, at in enumerate(["2026-11-16 11:00Z", "10000-01-01 00:00Z"]):
        shop.connection.execute(
            "insert into headwater.outbox_message (topic, type, payload, created_at) values ('t', 'T', %s, %s)",
            [str(number), at],
        )
    assert shop.all(Gap(shop.snapshot())) == [0, 1]
    rows = shop.connection.execute(read_again(shop.table, Choice(since="2020-01-01 00:00+00"), None, 10)).fetchall()
    assert [row[shop.table.columns.names.index("payload")] for row in rows] == ["0", "1"]


def test_rows_of_another_server_are_noticed_and_all_rows_can_be_read(shop):
    shop.publish(1)
    assert fetch_sync(shop.connection, is_foreign(shop.table)) == [False]
    shop.connection.execute(
        "insert into headwater.outbox_message (topic, type, payload, xid) values ('t', 'T', '2', '999999999')"
    )
    assert fetch_sync(shop.connection, is_foreign(shop.table)) == [True]
    assert shop.all(Gap(shop.snapshot())) == [1]
    assert shop.all(Gap(None)) == [1, 2]
