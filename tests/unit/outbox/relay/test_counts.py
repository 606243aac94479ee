"""What a relay counts, and how old the oldest event may be."""

from headwater.outbox.relay.counts import Counts


def test_while_the_database_cannot_be_asked_the_oldest_event_grows_older_also_if_none_was_known():
    counts = Counts(is_database_up=True)
    assert counts.oldest(100.0) is None
    counts.oldest_seconds, counts.oldest_measured = 0.0, 100.0
    assert counts.oldest(107.0) == 0.0
    counts.is_database_up = False
    assert counts.oldest(107.0) == 7.0
    counts.oldest_seconds = 3.0
    assert counts.oldest(107.0) == 10.0
