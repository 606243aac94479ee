"""When a job that failed is tried again."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import JobError
from headwater.queue import FullJitter


def test_the_time_doubles_up_to_the_longest():
    policy = FullJitter(base="1s", most=10, longest="10s")
    waits = [policy.wait(attempts, 1.0) for attempts in range(1, 8)]
    assert waits == [timedelta(seconds=seconds) for seconds in (1, 2, 4, 8, 10, 10, 10)]


def test_any_part_of_it_is_waited():
    assert FullJitter(base="8s").wait(1, 0.0) == timedelta(0)
    assert FullJitter(base="8s").wait(1, 0.25) == timedelta(seconds=2)


def test_after_the_last_attempt_there_is_none():
    assert FullJitter(most=3).wait(2, 0.5) is not None
    assert FullJitter(most=3).wait(3, 0.5) is None
    assert FullJitter(most=1).wait(1, 0.5) is None
    assert FullJitter(most=3).wait(99, 0.5) is None


@given(st.integers(1, 10**9), st.floats(0, 1))
def test_no_wait_is_longer_than_the_longest(attempts, chance):
    wait = FullJitter(base="1s", most=10**10, longest="1h").wait(attempts, chance)
    assert wait is not None
    assert timedelta(0) <= wait <= timedelta(hours=1)


@pytest.mark.parametrize("wrong", [{"most": 0}, {"most": -1}, {"most": True}, {"most": 1.5}, {"most": "3"}])
def test_there_is_one_attempt_at_least(wrong):
    with pytest.raises(JobError, match="most of FullJitter"):
        FullJitter(**wrong)


@pytest.mark.parametrize(("name", "value"), [("base", "quick"), ("base", 5), ("longest", "-1s"), ("longest", None)])
def test_its_times_are_durations(name, value):
    with pytest.raises(JobError, match=f"{name} of FullJitter"):
        FullJitter(**{name: value})
