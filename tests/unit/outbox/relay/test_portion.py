"""How much goes at a time."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from headwater.outbox.relay.portion import take_portion
from headwater.outbox.relay.reviver import next_limit
from tests.support.outbox.relay_entries import entry


def of_size(size: int):
    made = entry()
    made.payload = "x" * size
    return made


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 10), st.integers(1, 60))
def test_a_portion_is_the_most_that_both_limits_allow_and_at_least_one(sizes, most, most_bytes):
    waiting = deque(map(of_size, sizes))
    taken = take_portion(waiting, most, most_bytes)
    assert [one.size for one in (*taken, *waiting)] == sizes
    assert bool(taken) == bool(sizes)
    assert len(taken) <= most
    total = sum(one.size for one in taken)
    assert total <= most_bytes or len(taken) == 1
    if waiting and len(taken) < most:
        assert total + waiting[0].size > most_bytes


def test_claims_grow_while_rows_are_small_and_shrink_when_they_are_large():
    assert next_limit(100, 100 * 100, 1000) == 200
    assert next_limit(800, 800 * 100, 1000) == 1000
    assert next_limit(1000, 1000 << 20, 1000) == 16
    assert next_limit(1, 1 << 30, 1000) == 1
