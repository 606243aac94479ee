"""Exactly once: rows and positions in one transaction, whatever comes again, and whoever else writes."""

import threading
from contextlib import closing
from dataclasses import replace

import pytest

from headwater.errors import SinkError, SinkFenced
from headwater.model.position import TimelineSwitch
from headwater.postgres.connect import connect_sync
from headwater.spark.frame import Frame
from headwater.spark.sinks import Written
from tests.conformance.sink_frames import Delivery, capture
from tests.support.sinks.postgres_sink_run import after, applying, by_key, execute, rows
from tests.support.waiting import eventually

SETUP = ("create table item (id int primary key, n int)",)
# An update that is applied twice shows.
STATEMENTS = (
    "insert into item select i, 0 from generate_series(1, 12) as i",
    "update item set n = n + 1",
    "delete from item where id > 10",
    "update item set n = n + 1 where id < 6",
)
KEYLESS = ("create table item (v text)", "alter table item replica identity full")


@pytest.fixture
def delivery(database) -> Delivery:
    return capture(database, STATEMENTS, tables=("item",), setup=SETUP)


def fetch(url: str, query: str) -> list[tuple[object, ...]]:
    with closing(connect_sync(url)) as connection:
        return connection.execute(query.encode()).fetchall()


def test_the_same_range_again_changes_nothing(database, target, delivery):
    with applying(database, target, ["item"]) as run:
        run.write(delivery)
        before = fetch(target, "select xmin, * from item order by id")
        again = run.write(delivery)

    assert again == Written(skipped=len(delivery.changes))
    assert fetch(target, "select xmin, * from item order by id") == before


def test_of_overlapping_ranges_each_change_is_applied_once(database, target):
    delivery = capture(
        database, ("insert into item select i % 3 from generate_series(1, 10) i",), tables=("item",), setup=KEYLESS
    )
    with applying(database, target, ["item"]) as run:
        run.write(delivery.between(delivery.span.start, after(delivery, 7)))
        written = run.write(delivery.between(after(delivery, 3), delivery.span.end))

    assert written == Written(changes=3, skipped=4)
    assert rows(target, "item") == rows(database, "item")


def test_an_older_range_does_not_take_a_position_back(database, target, delivery):
    with applying(database, target, ["item"]) as run:
        run.write(delivery)
        run.write(delivery.between(delivery.span.start, after(delivery, 7)))
        assert run.write(delivery).changes == 0


def test_a_range_of_no_changes_writes_nothing(database, target, delivery):
    with applying(database, target, ["item"]) as run:
        assert run.write(Delivery((), delivery.span)) == Written()

    assert fetch(target, "select * from headwater.sink_position") == []


def test_rows_and_position_are_in_one_transaction(database, target, delivery):
    with applying(database, target, ["item"]) as run:
        run.write(delivery)

    (written,) = {row[0] for row in fetch(target, "select xmin from item")}
    assert fetch(target, "select xmin, commit_lsn, ordinal from headwater.sink_position") == [
        (written, delivery.span.end.commit_lsn, delivery.span.end.ordinal)
    ]


def test_when_the_position_cannot_be_saved_no_row_is_there(database, target, delivery):
    with applying(database, target, ["item"]) as run:
        execute(target, "alter table headwater.sink_position rename column updated_at to changed_at")
        with pytest.raises(SinkError, match="updated_at"):
            run.write(delivery)
        assert rows(target, "item") == []
        execute(target, "alter table headwater.sink_position rename column changed_at to updated_at")
        assert run.write(delivery).changes == len(delivery.changes)

    assert rows(target, "item") == rows(database, "item")


def test_a_run_that_was_taken_over_from_writes_nothing_more(database, target, delivery):
    middle = after(delivery, 12)
    with applying(database, target, ["item"]) as first, applying(database, target, ["item"]) as second:
        with pytest.raises(SinkFenced, match="later run of pipeline 'shop'"):
            first.write(delivery)
        assert rows(target, "item") == []
        second.write(delivery.between(delivery.span.start, middle))
        with pytest.raises(SinkFenced):
            first.write(delivery.between(middle, delivery.span.end))

        assert len(rows(target, "item")) == 12


def test_a_takeover_waits_until_a_write_has_ended(database, target, delivery):
    with applying(database, target, ["item"]) as first, closing(connect_sync(target)) as blocker:
        # Somebody locks the table, so that the write waits in its middle.
        blocker.execute("begin")
        blocker.execute("lock table item in share mode")
        writing = threading.Thread(target=first.write, args=[delivery])
        writing.start()
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        eventually(lambda: fetch(target, waiting) == [(1,)])
        opened = threading.Event()

        def take_over() -> None:
            with applying(database, target, ["item"]):
                opened.set()

        taking = threading.Thread(target=take_over)
        taking.start()
        eventually(lambda: fetch(target, waiting) == [(2,)])
        assert not opened.is_set()
        blocker.execute("rollback")
        writing.join()
        taking.join()

    assert opened.is_set()
    assert rows(target, "item") == rows(database, "item")


def test_a_task_that_is_started_again_waits_for_the_first_try_of_it(database, target):
    delivery = capture(
        database, ("insert into item select 'same' from generate_series(1, 5)",), tables=("item",), setup=KEYLESS
    )
    found: list[Written] = []
    with applying(database, target, ["item"]) as run, closing(connect_sync(target)) as blocker:
        blocker.execute("begin")
        blocker.execute("lock table item in share mode")
        zombie = threading.Thread(target=lambda: found.append(run.write(delivery)))
        zombie.start()
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        eventually(lambda: fetch(target, waiting) == [(1,)])
        again = type(run)(run.sink, run.address, run.epoch, type(run.session)(target))
        second = threading.Thread(target=lambda: found.append(again.write(delivery)))
        second.start()
        eventually(lambda: fetch(target, waiting) == [(2,)])
        blocker.execute("rollback")
        zombie.join()
        second.join()
        again.session.close()

    assert sorted(one.changes for one in found) == [0, 5]
    assert rows(target, "item") == rows(database, "item")


def test_lanes_of_a_table_have_positions_of_their_own(database, target, delivery):
    lanes = by_key(delivery, 3)
    with applying(database, target, ["item"]) as run:
        first = run.write(lanes[0])
        assert first.changes > 0
        assert run.write(lanes[0]) == Written(skipped=first.changes)
        for lane in lanes[1:]:
            assert run.write(lane).skipped == 0

    assert rows(target, "item") == rows(database, "item")


def test_after_some_lanes_the_whole_table_leaves_out_just_these(database, target):
    statements = ("insert into item select i, 0 from generate_series(1, 30) as i", "update item set n = n + 1")
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    lanes = by_key(delivery, 4)
    with applying(database, target, ["item"]) as run:
        done = run.write(lanes[0]).changes + run.write(lanes[2]).changes
        execute(target, "update item set n = n + 100")
        whole = run.write(delivery)

        assert whole == Written(changes=60 - done, skipped=done)
        assert run.write(lanes[1]).changes == 0, "what the whole table has, its lanes have"
        assert [run.write(lane).changes for lane in by_key(delivery, 3)] == [0, 0, 0]
    counts = fetch(target, "select n, count(*) from item group by n order by n")
    assert counts == [(1, 30 - done // 2), (101, done // 2)]


def test_lanes_by_another_number_leave_out_what_is_applied(database, target):
    delivery = capture(
        database, ("insert into item select i, 0 from generate_series(1, 30) as i",), tables=("item",), setup=SETUP
    )
    with applying(database, target, ["item"]) as run:
        done = run.write(by_key(delivery, 4)[1]).changes
        written = sum((run.write(lane) for lane in by_key(delivery, 3)), Written())

    assert written == Written(changes=30 - done, skipped=done)


def test_changes_of_another_server_are_not_taken_for_applied(database, target, delivery):
    with applying(database, target, ["item"]) as run:
        run.write(delivery)
        other = [
            Frame(f.lane, f.key_lane, f.batch, f.own_types, type(f.lineage)("12345", 1, (), "shop", "hw"))
            for f in delivery.frames
        ]
        with pytest.raises(SinkError, match="another server"):
            run.write(Delivery(tuple(other), delivery.span))


def test_changes_of_another_history_of_the_server_are_not_taken_for_applied(database, target, delivery):
    """A standby that lagged was promoted: it has written other changes to the positions that were delivered."""
    with applying(database, target, ["item"]) as run:
        run.write(delivery)
        lost = delivery.changes[12].position.commit_lsn
        promoted = [
            replace(f, lineage=replace(f.lineage, timeline=2, switches=(TimelineSwitch(1, lost),))) for f in delivery.frames
        ]
        with pytest.raises(SinkError, match="of timeline 1, which the server does not have any more"):
            run.write(Delivery(tuple(promoted), delivery.span))


def test_changes_go_on_behind_a_promotion_that_lost_nothing(database, target, delivery):
    middle = after(delivery, 12)
    with applying(database, target, ["item"]) as run:
        run.write(delivery.between(delivery.span.start, middle))
        switch = TimelineSwitch(1, middle.commit_lsn)
        frames = tuple(replace(f, lineage=replace(f.lineage, timeline=2, switches=(switch,))) for f in delivery.frames)
        assert run.write(Delivery(frames, delivery.span)) == Written(changes=len(delivery.changes) - 12, skipped=12)
        assert run.write(Delivery(frames, delivery.span)) == Written(skipped=len(delivery.changes))

    assert rows(target, "item") == rows(database, "item")


@pytest.mark.parametrize("lanes", [2, 3, 8, 50])
def test_a_table_that_takes_the_place_of_another_is_delivered_behind_it(database, target, lanes):
    """As in a migration without a pause; lanes must not take one for applied because the other is."""
    statements = (
        "insert into item values (1, 1)",
        "insert into twin values (1, 2), (2, 3)",
        "begin; alter table item rename to gone; alter table twin rename to item; commit",
        "insert into item values (4, 4)",
        "update item set n = 9 where id = 1",
    )
    setup = (*SETUP, "create table twin (like item including all)")
    execute(target, *setup)
    delivery = capture(database, statements, tables=("item", "twin"), setup=setup)
    by_lane: dict[int, list[Frame]] = {}
    for frame in delivery.split(lanes).frames:
        by_lane.setdefault(frame.lane, []).append(frame)
    with applying(database, target, ["item"]) as run:
        written = [run.write(Delivery(tuple(frames), delivery.span)) for frames in by_lane.values()]

    assert sum(written, Written()) == Written(changes=5)
    assert rows(target, "twin") == ["(1,2)", "(2,3)"]
    assert "(4,4)" in rows(target, "item")
    assert "(1,9)" in rows(target, "item")


def test_a_server_that_kills_the_connection_in_mid_write_leaves_nothing_and_the_write_completes(database, target, delivery):
    with applying(database, target, ["item"]) as run:
        execute(target, "create sequence kills")
        execute(
            target,
            """create function kill() returns trigger language plpgsql as $$
               begin
                   if nextval('kills') < 3 then perform pg_terminate_backend(pg_backend_pid()); end if;
                   return null;
               end $$""",
            "create trigger kill after insert on item execute function kill()",
            "alter table item enable always trigger kill",
        )
        assert run.write(delivery) == Written(changes=len(delivery.changes))
        assert fetch(target, "select last_value from kills") == [(3,)]

    assert rows(target, "item") == rows(database, "item")


def test_a_position_is_before_the_change_that_it_names(database, target, delivery):
    end = after(delivery, 5)
    with applying(database, target, ["item"]) as run:
        run.write(delivery.between(delivery.span.start, end))
        rest = run.write(delivery.between(end, delivery.span.end))

    assert rest == Written(changes=len(delivery.changes) - 5)
