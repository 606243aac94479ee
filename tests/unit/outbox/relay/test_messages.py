"""Entries as messages, and times as numbers."""

from datetime import UTC, datetime

from headwater.outbox.event import Event, encode_events
from headwater.outbox.relay.entry import Entry, microseconds
from headwater.outbox.relay.messages import as_messages

AT = datetime(2026, 11, 16, 15, 4, 5, 123457, UTC)


def test_an_entry_becomes_a_message_with_all_that_it_has():
    event = Event("orders", "OrderCreated", {"name": "Grüße"}, "17", {"traceparent": "00-1-2-01", "a": "ü"})
    (encoded,) = encode_events([event], {}, 1000)
    messages = as_messages([Entry.of(encoded, microseconds(AT), 0.0, 0.0)])
    assert messages.rows.to_pylist() == [
        {
            "id": str(encoded.id),
            "topic": "orders",
            "type": "OrderCreated",
            "key": "17",
            "payload": '{"name":"Grüße"}'.encode(),
            "content_type": "application/json",
            "headers": [("traceparent", "00-1-2-01"), ("a", "ü")],
            "created_at": AT,
        }
    ]


def test_times_are_exact_to_the_microsecond():
    assert microseconds(AT) == 1794841445123457
