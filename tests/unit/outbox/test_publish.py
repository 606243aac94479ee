"""Many events become statements of moderate size, in their order."""

from headwater.outbox.event import Event, encode_events
from headwater.outbox.publish import chunks


def encoded(count, size=1):
    return encode_events([Event("t", "y", "x" * size) for _ in range(count)], {}, 10**9)


def test_a_statement_has_a_thousand_events_at_most():
    events = encoded(2001)
    cut = list(chunks(events))
    assert [len(chunk) for chunk in cut] == [1000, 1000, 1]
    assert [event for chunk in cut for event in chunk] == events


def test_a_statement_of_large_events_has_fewer_and_one_that_is_too_large_has_a_statement_of_its_own():
    assert [len(chunk) for chunk in chunks(encoded(7, 3 * 1024 * 1024))] == [2, 2, 2, 1]
    assert [len(chunk) for chunk in chunks(encoded(2, 9 * 1024 * 1024))] == [1, 1]


def test_of_nothing_there_is_no_statement():
    assert list(chunks([])) == []
