"""The replica of the demo: what each kind of change does to it, and that a change that was lost does not go unseen."""

from datetime import UTC, datetime

import pytest

from headwater.cli.demo.replica import Replica
from headwater.model import UNCHANGED, Change, Lsn, Op, Position


def change(op, *, before=None, after=None):
    position = Position(Lsn(1), 0)
    return Change(position, 1, datetime(2024, 1, 1, tzinfo=UTC), op, "shop", "item", None, before, after)


def insert(number, name, body="long"):
    return change(Op.INSERT, after={"id": number, "name": name, "body": body})


def update(number, name, body=UNCHANGED):
    return change(Op.UPDATE, after={"id": number, "name": name, "body": body})


def delete(number):
    return change(Op.DELETE, before={"id": number})


def replica_of(*changes):
    replica = Replica("item", ["id"])
    for one in changes:
        replica.apply(one)
    return replica


def row(number, name, body="long"):
    return {"id": number, "name": name, "body": body}


HISTORY = (
    insert(1, "a"),
    insert(2, "b"),
    change(Op.TRUNCATE),
    insert(3, "c"),
    insert(4, "d"),
    insert(5, "e"),
    update(3, "C"),
    change(Op.UPDATE_KEY, before={"id": 4}, after={"id": 40, "name": "d", "body": UNCHANGED}),
    delete(5),
)
SOURCE = (row(3, "C"), row(40, "d"))


def test_a_replica_that_got_every_change_is_equal_to_its_table():
    replica = replica_of(*HISTORY)

    comparison = replica.compare(SOURCE)

    assert comparison.is_equal
    assert (comparison.equal, comparison.differences) == (2, [])
    assert replica.kept_values == 2


# What the truncate has removed anyway leaves no trace in the rows; the report also holds the counts against each other.
@pytest.mark.parametrize("lost", range(2, len(HISTORY)))
def test_whichever_change_is_lost_the_comparison_shows_it(lost):
    comparison = replica_of(*HISTORY[:lost], *HISTORY[lost + 1 :]).compare(SOURCE)

    assert not comparison.is_equal
    assert comparison.differences


def test_a_change_that_comes_twice_is_noticed_although_the_rows_are_equal():
    comparison = replica_of(*HISTORY[:4], HISTORY[3], *HISTORY[4:]).compare(SOURCE)

    assert (comparison.equal, comparison.strays) == (2, 1)
    assert comparison.differences == ["item: 1 changes did not fit the rows they came to"]


def test_rows_that_are_missing_extra_or_different_are_counted_and_named():
    replica = replica_of(insert(1, "a"), insert(2, "b"), insert(3, "c"))

    comparison = replica.compare([row(1, "a"), row(2, "B"), row(4, "d")])

    assert (comparison.equal, comparison.missing, comparison.extra, comparison.different) == (1, 1, 1, 1)
    assert comparison.differences == [
        "item id=2 differs: name is 'B', in the replica 'b'",
        "item id=4 is missing in the replica",
        "item id=3 is in the replica only",
    ]


def test_only_the_first_of_many_different_rows_are_named():
    comparison = replica_of().compare([row(number, "a") for number in range(100)])

    assert comparison.missing == 100
    assert len(comparison.differences) == 6
    assert comparison.differences[-1] == "item: 95 more rows are not equal"


def test_a_value_that_was_not_sent_and_is_not_known_is_no_null():
    comparison = replica_of(update(1, "a")).compare([{"id": 1, "name": "a", "body": None}])

    assert comparison.different == 1
    assert "body is None, in the replica UNCHANGED" in comparison.differences[0]


def test_a_whole_old_row_gives_the_key_that_the_row_had():
    renumbered = change(Op.UPDATE, before=row(1, "a"), after=row(2, "a"))

    assert replica_of(insert(1, "a"), renumbered).compare([row(2, "a")]).is_equal


def test_large_values_are_cut_short_where_they_are_named():
    comparison = replica_of(insert(1, "a", "x" * 5000)).compare([row(1, "a", "y" * 5000)])

    assert len(comparison.differences[0]) < 150
