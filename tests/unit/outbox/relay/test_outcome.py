"""What becomes of events after an attempt."""

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.brokers.base import Left, Offered, Refused
from headwater.outbox.relay.outcome import Judge
from headwater.outbox.relay.settings import RelaySettings
from tests.support.outbox.relay_entries import entry

SETTINGS = RelaySettings()
HOUR = 3600


def judge(entries, offered, *, settings=SETTINGS, now=0.0, chance=1.0):
    return Judge(settings, lambda: chance).judge(entries, offered, now)


def test_what_was_stored_is_published_and_has_one_attempt_more():
    first, second = entry("a"), entry("b", tries=1)
    outcome = judge([first, second], Offered(2))
    assert outcome.published == [first, second]
    assert [first.tries, second.tries] == [1, 2]


def test_what_is_refused_is_dead_at_once_with_the_reason():
    (dead,) = judge([entry()], Offered(0, refused=(Refused(0, "unroutable"),))).unpublished
    assert (dead.status, dead.error, dead.wait_seconds, dead.entry.tries) == ("dead", "unroutable", None, 1)


def test_a_nack_of_a_new_event_is_tried_again_soon_and_twice():
    new, nacked = entry(), Offered(0, left=(Left(0, "full", was_sent=True, was_answered=True),))
    assert judge([new], nacked).again == [(0.05, new)]
    assert judge([new], nacked).again == [(0.1, new)]
    (later,) = judge([new], nacked).unpublished
    assert (later.status, later.error, later.wait_seconds, later.entry.tries) == ("pending", "full", 1.0, 3)


def test_what_was_found_in_the_table_goes_back_there_at_once_and_waits_longer_each_time():
    nacked = Offered(0, left=(Left(0, "full", was_sent=True),))
    waits = [judge([entry(attempts=n, committed=None)], nacked).unpublished[0].wait_seconds for n in (3, 4, 5, 18)]
    assert waits == [2, 4, 8, 300]


def test_the_last_attempt_makes_it_dead_with_the_reason_of_the_broker():
    nacked = Offered(0, left=(Left(0, "full", was_sent=True),))
    (dead,) = judge([entry(attempts=99, committed=None)], nacked).unpublished
    assert (dead.status, dead.error) == ("dead", "given up after 100 attempts: full")


@pytest.mark.parametrize(("chance", "least", "most"), [(0.5, 3 * HOUR, 4 * HOUR), (1.0, 7 * HOUR, 8 * HOUR)])
def test_a_queue_that_stays_full_makes_an_event_dead_after_some_hours(chance, least, most):
    """Half of the longest wait is the mean of a jitter that is full."""
    nacked = Offered(0, left=(Left(0, "full", was_sent=True, was_answered=True),))
    at, waiting, is_dead = 0.0, entry(deadline=math.inf), False
    while not is_dead:
        outcome = judge([waiting], nacked, now=at, chance=chance)
        if outcome.again:
            ((at, _),) = outcome.again
            continue
        (written,) = outcome.unpublished
        is_dead = written.status == "dead"
        at += written.wait_seconds or 0.0
        waiting = entry(attempts=waiting.attempts + waiting.tries, committed=None, deadline=math.inf)
    assert least < at < most


def test_a_quick_retry_that_would_not_fit_into_the_lease_is_left_to_the_table():
    nacked = Offered(0, left=(Left(0, "full", was_sent=True),))
    assert judge([entry(deadline=10.0)], nacked).again == []
    assert len(judge([entry(deadline=10.1)], nacked).again) == 1


def test_what_was_never_sent_has_had_no_attempt():
    unsent = entry(attempts=99, committed=None)
    (later,) = judge([unsent], Offered(0, left=(Left(0, "gone", was_sent=False),))).unpublished
    assert (later.status, unsent.tries) == ("pending", 0)


def test_only_what_was_under_way_without_an_answer_is_suspected():
    entries = [entry("a"), entry("b"), entry("c"), entry("d")]
    left = (
        Left(1, "gone", was_sent=True),
        Left(2, "full", was_sent=True, was_answered=True),
        Left(3, "gone", was_sent=False),
    )
    assert judge(entries, Offered(1, left=left)).suspects == [entries[1]]


@given(st.lists(st.sampled_from(["stored", "refused", "nacked", "lost", "unsent"]), max_size=30), st.integers(90, 110))
def test_every_event_has_exactly_one_outcome(fates, attempts):
    entries = [entry(str(index), attempts=attempts) for index in range(len(fates))]
    refused = tuple(Refused(index, "no") for index, fate in enumerate(fates) if fate == "refused")
    left = tuple(
        Left(index, "not now", fate != "unsent", fate == "nacked")
        for index, fate in enumerate(fates)
        if fate in ("nacked", "lost", "unsent")
    )
    outcome = judge(entries, Offered(fates.count("stored"), refused=refused, left=left))
    ends = [*outcome.published, *(one for _, one in outcome.again), *(one.entry for one in outcome.unpublished)]
    assert sorted(one.id for one in ends) == sorted(one.id for one in entries)
    assert len(outcome.published) == fates.count("stored")


def test_no_quick_retries_are_a_choice():
    nacked = Offered(0, left=(Left(0, "full", was_sent=True),))
    settings = RelaySettings(quick_retries=0, retry_wait=timedelta(seconds=3))
    assert judge([entry()], nacked, settings=settings).unpublished[0].wait_seconds == 3
