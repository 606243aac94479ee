"""How long to wait."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from headwater.outbox.relay.backoff import full_jitter

FIRST, LONGEST = timedelta(seconds=1), timedelta(minutes=5)


@given(failures=st.integers(0, 10_000), chance=st.floats(0, 1))
def test_a_wait_is_never_longer_than_the_longest_nor_negative(failures, chance):
    assert 0 <= full_jitter(FIRST, LONGEST, failures, chance) <= 300


@given(failures=st.integers(1, 100), chance=st.floats(0, 1))
def test_it_never_shrinks_with_more_failures(failures, chance):
    assert full_jitter(FIRST, LONGEST, failures, chance) <= full_jitter(FIRST, LONGEST, failures + 1, chance)


def test_it_doubles_and_uses_the_whole_range():
    assert [full_jitter(FIRST, LONGEST, failures, 1.0) for failures in (1, 2, 3, 9, 10)] == [1, 2, 4, 256, 300]
    assert full_jitter(FIRST, LONGEST, 5, 0.0) == 0
