"""Messages as lines, and lines as messages."""

import json
from datetime import UTC, datetime

import pytest

from headwater.cli.topics.messages import json_line, json_message, text_line
from headwater.errors import TopicError
from headwater.topics import Message

AT = datetime(2026, 11, 16, 12, 30, 1, 250_000, tzinfo=UTC)


def read(payload, key="17", headers=None):
    return Message(payload, key, headers, 2, 41, AT)


@pytest.mark.parametrize(
    ("payload", "name", "value"),
    [
        (b'{"id": 17}', "payload", {"id": 17}),
        (b"17", "payload", 17),
        (b"null", "payload", None),
        (b'{\n  "id": 17\n}', "payload", {"id": 17}),
        (b"NaN", "payload_text", "NaN"),
        ("grüße\t\u2028".encode(), "payload_text", "grüße\t\u2028"),
        (b"", "payload_text", ""),
        (b"\xff\x00", "payload_base64", "/wA="),
        (b"[" * 100_000, "payload_text", "[" * 100_000),
    ],
)
def test_a_line_has_the_payload_as_a_value_or_as_text_or_as_base64(payload, name, value):
    line = json_line(read(payload))

    assert "\n" not in line
    assert json.loads(line) == {
        "partition": 2,
        "offset": 41,
        "created_at": "2026-11-16T12:30:01.250000+00:00",
        "key": "17",
        "headers": {},
        name: value,
    }


def test_a_number_in_a_line_has_the_digits_that_it_was_written_with():
    assert json_line(read(b'{"amount": 19.900}')).endswith('"payload": {"amount": 19.900}}')


@pytest.mark.parametrize("payload", [b"hello", b"\xff\x00", "ü".encode(), b""])
def test_what_was_read_as_a_line_can_be_appended_again_as_it_was(payload):
    again = json_message(json_line(read(payload, headers={"a": "b"})).encode(), None, {})

    assert (again.payload, again.key, again.headers) == (payload, "17", {"a": "b"})
    assert (again.partition, again.offset) == (None, None)


def test_the_options_are_for_lines_that_have_no_key_and_no_such_header():
    own = json_message(b'{"payload": 1, "key": "k", "headers": {"a": "own"}}', "option", {"a": "option", "b": "option"})
    without = json_message(b'{"payload": 1, "key": null}', "option", {"a": "option"})

    assert (own.key, own.headers) == ("k", {"a": "own", "b": "option"})
    assert (without.key, without.headers) == ("option", {"a": "option"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "the line is no JSON"),
        (b'{"payload": NaN}', "NaN is no number of JSON"),
        (b"17", "write it as"),
        (b"{}", "one of payload, payload_text, payload_base64; this one has none"),
        (b'{"payload": 1, "payload_text": "1"}', "this one has payload and payload_text"),
        (b'{"payload": 1, "keys": "a"}', "a message has no 'keys'"),
        (b'{"payload": 1, "headers": "a"}', "headers are an object"),
        (b'{"payload_base64": "?"}', "is no Base64"),
        (b'{"payload_text": 1}', "payload_text is a string, not 1"),
        (b"\xff", "the line is no JSON"),
    ],
)
def test_a_line_that_is_no_message_says_what_to_write(line, said):
    with pytest.raises(TopicError, match=said):
        json_message(line, None, {})


def test_a_line_for_people_has_place_key_payload_and_headers_and_moves_no_cursor():
    line = text_line(read(b"red \x1b[31m", headers={"source": "shop"}))

    assert line.split("  ", 1)[1] == "2:41        17  red \\x1b[31m  source=shop"


def test_a_long_payload_is_cut_for_people():
    assert len(text_line(read(b"x" * 10_000))) < 500
