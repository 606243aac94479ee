"""What the demo counts: changes, transactions, latencies, rates."""

from datetime import UTC, datetime, timedelta

import pytest

from headwater.cli.demo.tally import Rate, Tally, percentile
from headwater.model import Lsn, Op

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def after(seconds):
    return NOON + timedelta(seconds=seconds)


def test_a_transaction_counts_once_it_is_settled_with_the_time_since_its_commit():
    tally = Tally()
    tally.begin(Lsn(10), NOON, after(1))
    tally.add(Lsn(10), "item", Op.INSERT, 3)
    assert (tally.changes, tally.transactions) == (3, 0)

    tally.settle(after(2))
    tally.settle(after(9))

    assert (tally.transactions, tally.latencies) == (1, [2.0])


def test_a_transaction_in_several_pieces_is_one_and_lasts_from_its_first_to_its_last():
    tally = Tally()
    for second in (1, 2, 3):
        tally.begin(Lsn(10), NOON, after(second))
        tally.add(Lsn(10), "item", Op.INSERT, 100)
    tally.settle(after(4))

    assert tally.transactions == 1
    assert (tally.largest.changes, tally.largest.seconds, tally.largest.seconds_after_commit) == (300, 3.0, 4.0)
    assert tally.largest.per_second == 100


def test_the_largest_transaction_stays_the_largest():
    tally = Tally()
    for lsn, count in ((1, 5), (2, 50), (3, 6)):
        tally.begin(Lsn(lsn), NOON, NOON)
        tally.add(Lsn(lsn), "item", Op.DELETE, count)
        tally.settle(after(1))

    assert tally.largest.changes == 50
    assert tally.counts == {("item", Op.DELETE): 61}


def test_the_rate_is_that_of_the_last_second():
    rate = Rate()

    assert rate.at(0.0, 0) == 0
    assert rate.at(0.5, 50) == 100
    assert [rate.at(second, 1000) for second in (1.0, 1.5, 2.0, 3.0)][-1] == 0


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(share, expected):
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_without_values_a_percentile_is_nothing():
    assert percentile([], 0.99) == 0
