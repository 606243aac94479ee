from datetime import timedelta

import pytest

from headwater.postgres.backoff import Backoff

BACKOFF = Backoff(first=timedelta(seconds=1), longest=timedelta(seconds=10))


def test_the_wait_doubles_with_each_failure_up_to_the_longest():
    waits = [BACKOFF.after(failures, jitter=0).total_seconds() for failures in (1, 2, 3, 4, 5, 10_000)]
    assert waits == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize(("jitter", "seconds"), [(0, 2), (0.5, 1.5), (1, 1)])
def test_jitter_takes_off_up_to_half(jitter, seconds):
    assert BACKOFF.after(2, jitter).total_seconds() == seconds
