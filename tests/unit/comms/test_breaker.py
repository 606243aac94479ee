"""How long a provider that is away is left alone."""

from datetime import timedelta

import pytest

from headwater.comms.breaker import Breaker
from headwater.comms.outcome import Outcome, Verdict, away, transient


def test_it_is_left_alone_for_longer_after_each_failure_and_not_at_all_after_a_success():
    breaker = Breaker()
    pauses = []
    for now in (0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0):
        breaker.note(away("gone"), now, jitter=0.0)
        pauses.append(breaker.closed_until - now)
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 30, 30])
    breaker.note(Outcome(verdict=Verdict.SENT), 700.0)
    breaker.note(away("gone"), 800.0, jitter=0.0)
    assert breaker.closed_until == pytest.approx(801.0)


def test_what_is_about_one_message_closes_nothing():
    breaker = Breaker()
    breaker.note(transient("mailbox full", 452, timedelta(hours=1)), 0.0)
    assert breaker.closed_until < 0


def test_the_time_that_a_provider_asks_for_counts_up_to_a_minute():
    breaker = Breaker()
    breaker.note(away("slow down", 429, timedelta(seconds=17)), 0.0)
    assert breaker.closed_until == pytest.approx(17.0)
    breaker.note(away("slow down", 429, timedelta(hours=1)), 0.0)
    assert breaker.closed_until == pytest.approx(60.0)
    # One who answers later does not open it again.
    breaker.note(away("slow down", 429, timedelta(seconds=1)), 0.0)
    assert breaker.closed_until == pytest.approx(60.0)


def test_messages_that_were_under_way_together_count_as_one_failure():
    breaker = Breaker()
    for _ in range(8):
        breaker.note(away("gone"), 0.0, jitter=0.0)
    assert breaker.closed_until == pytest.approx(1.0)
