"""Which segments are full, and which are kept."""

from datetime import UTC, datetime, timedelta

import pytest

from headwater.topics import Segment, Topic
from headwater.topics.retention import expired_segments, is_before, is_full

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def topic(retention=None, retention_bytes=None):
    return Topic(1, "orders", 1, False, retention, retention_bytes, 1 << 20, NOW)


def segment(number=0, size=100, *, age=timedelta(0), current=False, began=0.0, read=True, empty=False):
    newest = None if empty else NOW - age
    return Segment(number, size, current, began, newest, None if empty else number * 10 + 9, read, NOW)


@pytest.mark.parametrize(
    ("kept", "current", "full"),
    [
        (topic(8 * DAY), segment(began=86_399, current=True), False),
        (topic(8 * DAY), segment(began=86_400, current=True), True),
        # No shorter than a minute, however short the retention is.
        (topic(timedelta(seconds=80)), segment(began=59, current=True), False),
        (topic(timedelta(seconds=80)), segment(began=60, current=True), True),
        (topic(8 * DAY), segment(began=10**9, current=True, empty=True), False),
        (topic(None, 8000), segment(size=999, current=True), False),
        (topic(None, 8000), segment(size=1000, current=True), True),
        # Without limits, by size alone.
        (topic(), segment(size=(1 << 30) - 1, began=10**9, current=True), False),
        (topic(), segment(size=1 << 30, current=True), True),
        (topic(None, 100 << 30), segment(size=1 << 30, current=True), True),
    ],
)
def test_a_segment_is_full_after_an_eighth_of_what_is_kept(kept, current, full):
    assert is_full(current, kept) is full


def numbers(segments, kept):
    return [one.segment for one in expired_segments(segments, kept)]


def test_what_is_old_and_read_goes_from_the_oldest_on():
    log = [segment(0, age=3 * DAY), segment(1, empty=True), segment(2, age=2 * DAY), segment(3, age=DAY, current=True)]
    assert numbers(log, topic(2.5 * DAY)) == [0, 1]
    assert numbers(log, topic(0.5 * DAY)) == [0, 1, 2]
    assert numbers(log, topic()) == []


def test_nothing_goes_that_stands_behind_something_that_stays():
    log = [segment(0, age=3 * DAY, read=False), segment(1, age=3 * DAY), segment(2, current=True)]
    assert numbers(log, topic(DAY)) == []


def test_what_is_too_much_goes_read_or_not_and_not_more_than_that():
    log = [segment(number, 100, read=False) for number in range(4)] + [segment(4, 100, current=True)]
    assert numbers(log, topic(None, 500)) == []
    assert numbers(log, topic(None, 499)) == [0]
    assert numbers(log, topic(None, 250)) == [0, 1, 2]
    assert numbers(log, topic(None, 1)) == [0, 1, 2, 3]


def test_a_segment_is_before_a_place_if_all_of_it_is():
    assert not is_before(segment(), 9)
    assert is_before(segment(), 10)
    assert not is_before(segment(), NOW)
    assert is_before(segment(), NOW + timedelta(microseconds=1))
    assert is_before(segment(), None)
    assert is_before(segment(empty=True), 0)
    # There is nothing to be gained by closing it.
    assert not is_before(segment(empty=True, current=True), None)
