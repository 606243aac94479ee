"""Events in logical messages: what is written comes back, byte for byte, and what is none is a DecodeError."""

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import DecodeError
from headwater.outbox.emit import Emitted, decode_emitted, encode_emitted
from headwater.outbox.event import MAX_PAYLOAD_BYTES, Event, encode_events

ID = UUID("01890000-0000-7000-8000-000000000001")


def content(**changed):
    (event,) = encode_events(
        [Event(**{"topic": "t", "type": "y", "payload": 1, "id": ID, **changed})], {}, MAX_PAYLOAD_BYTES
    )
    return encode_emitted(event).encode()


def test_an_event_comes_back_as_it_was_written():
    payload = b'{ "a" : [1, 1.10],\n "payload": "\\u00f8", "b": "}" }'
    written = content(topic='or"ders', key="k\\", headers={"x": "ø"}, payload=payload)
    assert json.loads(written)["payload"]["b"] == "}"
    assert decode_emitted(written) == Emitted(str(ID), 'or"ders', "y", "k\\", payload, {"x": "ø"})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.lists
    )
)
def test_any_payload_comes_back(payload):
    assert json.loads(decode_emitted(content(payload=payload)).payload) == payload


def test_one_that_was_written_in_sql_by_hand_needs_topic_type_and_payload_only():
    by_hand = b' {\n "payload" :\t{"a": 1}\n, "type": "y", "other": [1], "topic": "t" } '
    assert decode_emitted(by_hand) == Emitted(None, "t", "y", None, b'{"a": 1}', {})


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xff",
        b"[]",
        b'"payload"',
        b"{",
        b'{"topic": "t", "type": "y"}',
        b'{"topic": "t", "type": "y", "payload": NaN}',
        b'{"topic": "t", "type": "y", "payload": 1,}',
        b'{"topic": "t", "type": "y", "payload": 1} {}',
        b'{"topic": "", "type": "y", "payload": 1}',
        b'{"topic": "t", "type": null, "payload": 1}',
        b'{"topic": "t", "type": "y", "payload": 1, "key": 1}',
        b'{"topic": "t", "type": "y", "payload": 1, "id": {}}',
        b'{"topic": "t", "type": "y", "payload": 1, "headers": {"a": 1}}',
        b'{"topic": "t", "type": "y", "payload": 1, "headers": [1]}',
        b'{"topic": "t", "type": "y", "payload": ' + b"[" * 100_000 + b"}",
    ],
)
def test_what_is_no_event_is_a_decode_error(bad):
    with pytest.raises(DecodeError, match="emitted into the WAL cannot be read"):
        decode_emitted(bad)


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,payloadtic \\u01', max_size=60).map(str.encode))
def test_whatever_the_bytes_are_nothing_else_is_raised(noise):
    with pytest.raises(DecodeError):
        decode_emitted(noise)
