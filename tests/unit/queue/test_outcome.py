"""What handlers answer, and what is kept of errors."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import JobError
from headwater.queue import Discard, Done, Retry
from headwater.queue.outcome import Finished, GivenUp, as_duration, cut


def test_a_retry_has_a_time_or_leaves_it_to_the_policy():
    assert Retry("5s").wait == timedelta(seconds=5)
    assert Retry(timedelta(minutes=1)).wait == timedelta(minutes=1)
    assert Retry().wait is None
    assert Retry("0s").wait == timedelta(0)


@pytest.mark.parametrize("after", ["soon", "", "-5s", 5, -timedelta(seconds=1), "5"])
def test_a_retry_after_no_time_is_refused(after):
    with pytest.raises(JobError, match="after of Retry is"):
        Retry(after)


def test_durations_are_written_as_people_do():
    assert as_duration("1.5m", "x") == timedelta(seconds=90)
    with pytest.raises(JobError, match=r"x is 'never'; it must be a duration"):
        as_duration("never", "x")


def test_outcomes_are_values():
    assert (Done(), Discard("x"), Retry("1s")) == (Done(), Discard("x"), Retry(timedelta(seconds=1)))
    assert (Finished(), GivenUp("a", "b")) == (Finished("done"), GivenUp("a", "b"))


@given(st.text(alphabet=st.characters(), max_size=50))
def test_what_is_cut_can_be_kept(text):
    clean = cut(text)
    clean.encode()
    assert "\0" not in clean
    assert len(clean) == len(text)


def test_a_long_text_is_cut_and_says_so():
    assert len(cut("x" * 1_000_000)) == 10_000
    assert cut("x" * 1_000_000).endswith("x…")
    assert cut("x" * 10_000) == "x" * 10_000
