"""Histograms of a worker."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.queue.counts import BOUNDS, Counts, Times


def test_a_time_counts_for_the_first_bound_that_it_is_within():
    times = Times()
    for seconds in (0.0, 0.001, 0.0011, 300.0, 300.1):
        times.note(seconds)
    assert (times.buckets[0], times.buckets[1], times.buckets[-2], times.buckets[-1]) == (2, 1, 1, 1)
    assert round(times.total, 6) == 600.1021


@given(st.lists(st.floats(0, 1000), max_size=50))
def test_every_time_counts_once(all_seconds):
    times = Times()
    for seconds in all_seconds:
        times.note(seconds)
    assert sum(times.buckets) == len(all_seconds)
    assert sum(times.buckets[: BOUNDS.index(1.0) + 1]) == sum(seconds <= 1.0 for seconds in all_seconds)


def test_workers_do_not_share_their_counts():
    one, other = Counts(), Counts()
    one.schedule_to_claim.note(1.0)
    one.done += 1
    assert sum(other.schedule_to_claim.buckets) == other.done == 0
