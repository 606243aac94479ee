"""How many jobs are claimed ahead."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.queue.pace import Pace


def after(pace, jobs, seconds, begin=0.0):
    """A pace after so many jobs, evenly over a time."""
    for n in range(1, jobs + 1):
        pace.note(begin + seconds * n / jobs)
    return pace


def test_at_first_there_are_none():
    assert Pace(1000, 0.0).ahead(0.0) == 0


def test_quick_jobs_are_claimed_for_a_moment_ahead():
    assert after(Pace(5000, 0.0), 20_000, 2.0).ahead(2.0) in range(1800, 2200)


def test_slow_jobs_are_not_claimed_ahead():
    assert after(Pace(5000, 0.0), 20, 20.0).ahead(20.0) == 0


def test_it_is_never_more_than_the_most():
    assert after(Pace(100, 0.0), 10_000, 0.5).ahead(0.5) == 100


def test_jobs_that_become_slow_are_noticed():
    pace = after(Pace(5000, 0.0), 20_000, 2.0)
    assert after(pace, 10, 10.0, begin=2.0).ahead(12.0) < 100


def test_a_rate_of_before_counts_for_nothing_while_nothing_is_done():
    pace = after(Pace(5000, 0.0), 20_000, 2.0)
    assert pace.ahead(3.5) == 0


@given(st.lists(st.floats(0, 100), max_size=300), st.integers(1, 1000), st.floats(0, 100))
def test_it_is_always_between_none_and_the_most(steps, most, later):
    pace, now = Pace(most, 0.0), 0.0
    for step in steps:
        now += step
        pace.note(now)
        assert 0 <= pace.ahead(now + later) <= most
