"""Tokens that come back with time."""

import pytest

from headwater.comms.bucket import Bucket, Limiter


def test_a_burst_goes_at_once_and_then_one_each_part_of_a_second():
    bucket = Bucket.full(rate=10, burst=2, now=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.1, 0.2])
    assert bucket.take(0.2) == pytest.approx(0.1)
    assert bucket.take(10.0) == 0.0


def test_no_more_than_a_burst_is_saved_up():
    bucket = Bucket.full(rate=10, burst=2, now=0.0)
    assert [bucket.take(1000.0) for _ in range(3)] == pytest.approx([0.0, 0.0, 0.1])


def test_within_any_time_no_more_go_than_the_rate_and_a_burst():
    bucket = Bucket.full(rate=5, burst=5, now=0.0)
    went = [now + bucket.take(now) for now in (n * 0.01 for n in range(300))]
    for begin in went:
        assert sum(begin <= at < begin + 1.0 - 1e-9 for at in went) <= 10


def test_one_who_does_not_use_a_token_gives_it_back():
    bucket = Bucket.full(rate=1, burst=1, now=0.0)
    bucket.take(0.0)
    bucket.give_back()
    assert bucket.take(0.0) == 0.0


def test_without_a_rate_nobody_waits():
    limiter = Limiter(None)
    assert [limiter.reserve() for _ in range(100)] == [0.0] * 100
    limiter.give_back()


def test_one_who_does_not_wait_leaves_the_turn_to_the_next():
    limiter = Limiter(0.01)
    assert limiter.reserve() == 0.0
    first = limiter.reserve()
    limiter.give_back()
    assert limiter.reserve() == pytest.approx(first, abs=1)
