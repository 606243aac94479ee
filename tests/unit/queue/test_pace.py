"""How many jobs are claimed ahead."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.queue.pace import Pace


def after(pace, jobs, seconds, begin=0.0):
    """A pace after so many jobs, evenly over a time."""
    for n in range(1, jobs + 1):
        pace.note(begin + seconds * n / jobs)
    return pace


def test_at_first_it_is_the_least():
    assert Pace(8, 1000, 0.0).ahead == 8


def test_quick_jobs_are_claimed_for_a_moment_ahead():
    assert after(Pace(8, 5000, 0.0), 20_000, 2.0).ahead in range(1800, 2200)


def test_slow_jobs_are_not_claimed_beyond_the_least():
    assert after(Pace(8, 5000, 0.0), 20, 20.0).ahead == 8


def test_it_is_never_more_than_the_most():
    assert after(Pace(8, 100, 0.0), 10_000, 0.5).ahead == 100


def test_jobs_that_become_slow_are_noticed():
    pace = after(Pace(8, 5000, 0.0), 20_000, 2.0)
    assert after(pace, 10, 10.0, begin=2.0).ahead < 100


@given(st.lists(st.floats(0, 100), max_size=300), st.integers(1, 64), st.integers(0, 1000))
def test_it_is_always_between_the_two(steps, least, more):
    pace, now = Pace(least, least + more, 0.0), 0.0
    for step in steps:
        now += step
        pace.note(now)
        assert least <= pace.ahead <= least + more
