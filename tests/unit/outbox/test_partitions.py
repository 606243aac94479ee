"""Which partitions are to be made: without overlap and without a gap, whatever is there."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from headwater.outbox.partitions import missing_partitions
from headwater.outbox.statements import Partition

NOW = datetime(2026, 11, 16, 13, 30, tzinfo=UTC)
DAY = timedelta(days=1)


def day(number, hour=0):
    return datetime(2026, 11, number, hour, tzinfo=UTC)


def bounds(partitions):
    return [(one.lower, one.upper) for one in partitions]


def test_partitions_begin_with_the_one_of_now_and_reach_ahead():
    made = missing_partitions([], NOW, timedelta(days=2), DAY)
    assert bounds(made) == [(day(16), day(17)), (day(17), day(18)), (day(18), day(19))]
    assert made[0].name == "outbox_message_20261116_0000"


def test_what_is_there_is_left_out_and_another_length_fills_what_is_between():
    there = [Partition("headwater", "x", day(16), day(17, 6)), Partition("headwater", "y", day(17, 18), day(18))]
    made = missing_partitions(there, NOW, timedelta(days=2), DAY)
    assert bounds(made) == [(day(17, 6), day(17, 18)), (day(18), day(19))]


def test_without_time_ahead_there_is_the_partition_of_now():
    assert bounds(missing_partitions([], NOW, timedelta(0), timedelta(hours=1))) == [(day(16, 13), day(16, 14))]


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 50)), max_size=6),
    st.integers(1, 72),
    st.integers(0, 96),
)
def test_after_it_every_time_ahead_has_one_partition(spans, every, ahead):
    there: list[Partition] = []
    for start, length in spans:
        lower, upper = day(12) + timedelta(hours=start), day(12) + timedelta(hours=start + length)
        if all(upper <= one.lower or lower >= one.upper for one in there):
            there.append(Partition("headwater", str(start), lower, upper))
    made = missing_partitions(there, NOW, timedelta(hours=ahead), timedelta(hours=every))
    for hour in range(ahead + 1):
        at = NOW + timedelta(hours=hour)
        assert sum(one.lower <= at < one.upper for one in [*there, *made]) == 1
    assert len({one.name for one in made}) == len(made)
