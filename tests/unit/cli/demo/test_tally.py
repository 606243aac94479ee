"""What the demo makes of its looks at both ends: lags, rates, percentiles."""

from datetime import UTC, datetime, timedelta

import pytest

from headwater.cli.demo.tally import Large, Tally, percentile

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def after(seconds):
    return NOON + timedelta(seconds=seconds)


def test_a_target_that_lacks_changes_is_behind_by_the_age_of_the_last_that_it_has():
    tally = Tally(NOON)
    tally.look(after(5), written=10, delivered=9, committed_at=after(2))

    assert tally.lag == 3


def test_a_target_that_has_all_changes_is_not_behind_however_old_the_last_one_is():
    tally = Tally(NOON)
    tally.look(after(5), written=10, delivered=10, committed_at=after(2))

    assert tally.lag == 0


@pytest.mark.parametrize("committed_at", [None, after(-60)])
def test_before_anything_was_delivered_the_target_is_behind_since_the_beginning(committed_at):
    tally = Tally(NOON)
    tally.look(after(1), written=10, delivered=0, committed_at=committed_at)

    assert tally.lag == 1


def test_the_rate_is_that_of_the_last_two_seconds():
    tally, rates = Tally(NOON), []
    for second, delivered in ((0, 0), (1, 100), (2, 100), (3, 1100), (4, 1100), (5, 1100), (6, 1100)):
        tally.look(after(second), written=2000, delivered=delivered, committed_at=NOON)
        rates.append(tally.rate)

    assert rates == [0, 100, 50, 500, 500, 0, 0]


def test_what_was_delivered_before_the_first_look_is_no_rate():
    tally = Tally(NOON)
    tally.look(after(0.01), written=500, delivered=500, committed_at=NOON)

    assert tally.rate == 0


def test_without_a_look_there_is_neither_lag_nor_rate():
    assert (Tally(NOON).lag, Tally(NOON).rate) == (0, 0)


def test_the_rate_of_the_large_transaction_counts_from_its_commit():
    assert Large(1000, 0.5).per_second == 2000
    assert Large(1000, 0.0).per_second == 0


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(share, expected):
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_without_values_a_percentile_is_nothing():
    assert percentile([], 0.99) == 0
