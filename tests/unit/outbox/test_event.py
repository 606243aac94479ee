"""Events are checked and encoded before any SQL: what the server would refuse never reaches it."""

import json
from datetime import datetime
from uuid import UUID

import pytest

from headwater.errors import OutboxError
from headwater.outbox.event import MAX_DEPTH, MAX_PAYLOAD_BYTES, Event, encode_events, encode_payload


def encoded(**changed):
    given = {"topic": "orders", "type": "OrderCreated", "payload": {}, **changed}
    (event,) = encode_events([Event(**given)], given.pop("trace", {}), MAX_PAYLOAD_BYTES)
    return event


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"a": [1, 2.5, True, None], "ø": "🙂"}, '{"a":[1,2.5,true,null],"ø":"🙂"}'),
        ([], "[]"),
        ("text", '"text"'),
        (7, "7"),
        (None, "null"),
        (False, "false"),
        ("a line\nand \\u0000 in letters", r'"a line\nand \\u0000 in letters"'),
    ],
)
def test_any_json_value_is_a_payload_and_is_written_without_blanks(payload, text):
    assert encode_payload(payload) == text


@pytest.mark.parametrize(
    "text",
    ['{ "b": 1,\n "a": 1.10, "a": 1e400 }', "  null ", '"\\ud83d\\ude42 \\u00f8"', "1" * 5000, '"\\\\u0000 \\\\ud800"'],
)
def test_json_text_in_bytes_is_taken_as_it_is(text):
    assert encode_payload(text.encode()) == text


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (float("nan"), "cannot be written as JSON"),
        ({"a": [float("-inf")]}, "cannot be written as JSON"),
        ({"at": datetime(2026, 1, 1)}, "datetime is not JSON serializable"),
        ({("a", "b"): 1}, "keys must be"),
        ("half \ud83d of a pair", "half of a surrogate pair"),
        ({"half \udc00": 1}, "half of a surrogate pair"),
        ("nul \0", "NUL character"),
        ({"a\\\0": 1}, "NUL character"),
        (b"", "no JSON text"),
        (b"{", "no JSON text"),
        (b"{} {}", "no JSON text"),
        (b'"a\x01"', "no JSON text"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b"[-Infinity]", "Infinity is no JSON"),
        (b'"\xff"', "no JSON text in UTF-8"),
        ('"a"'.encode("utf-16"), "no JSON text in UTF-8"),
        (b"\xef\xbb\xbf{}", "no JSON text"),
        (b'"\\ud83d"', "half of a surrogate pair"),
        (b'"\\udC00\\ud83d"', "half of a surrogate pair"),
        (b'"\\\\\\u0000"', "NUL character"),
    ],
)
def test_what_is_no_json_is_refused_with_the_reason(payload, said):
    with pytest.raises(OutboxError, match=said):
        encode_payload(payload)


def test_a_payload_in_itself_is_refused():
    payload: list[object] = []
    payload.append(payload)
    with pytest.raises(OutboxError, match="Circular reference"):
        encode_payload(payload)


@pytest.mark.parametrize("deep", [MAX_DEPTH + 1, 100_000])
def test_a_payload_that_is_nested_too_deep_for_the_server_is_refused_as_value_and_as_text(deep):
    value: object = 1
    for _ in range(deep):
        value = [value]
    with pytest.raises(OutboxError, match="nested"):
        encode_payload(value)
    with pytest.raises(OutboxError, match="nested"):
        encode_payload(b"[" * deep + b"]" * deep)


def test_brackets_side_by_side_or_in_strings_are_no_depth():
    wide = [[{"[" * 1000: ']"\\'}] for _ in range(MAX_DEPTH)]
    assert encode_payload(wide) == json.dumps(wide, separators=(",", ":"))


def test_the_size_of_a_payload_is_counted_in_bytes_and_limited():
    assert encode_payload("øø", max_bytes=6) == '"øø"'
    with pytest.raises(OutboxError, match="has 6 bytes of JSON; at most 5 are allowed"):
        encode_payload("øø", max_bytes=5)
    with pytest.raises(OutboxError, match="at most 5"):
        encode_payload(b'"1234"', max_bytes=5)


@pytest.mark.parametrize("part", ["topic", "type", "key"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is empty"),
        ("a\nb", "control character"),
        ("a\0", "control character"),
        ("\x7f", "control character"),
        ("\x85", "control character"),
        ("half \ud800", "surrogate"),
        ("ø" * 128, "has 256 bytes"),
        (7, "is a int"),
        (b"orders", "is a bytes"),
    ],
)
def test_a_name_that_is_none_is_refused(part, name, said):
    with pytest.raises(OutboxError, match=f"the {part} .*{said}"):
        encoded(**{part: name})


def test_a_name_may_be_as_long_as_the_column_takes():
    assert encoded(topic="ø" * 127 + "o", type="t" * 255, key="k" * 255).topic.endswith("øo")


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"a": 1}, "header 'a' is a int"),
        ({"a": None}, "header 'a' is a NoneType"),
        ({1: "a"}, "the name of a header is a int"),
        ({"": "a"}, "the name of a header is empty"),
        ({"a": "1\r\nb: 2"}, "value of header 'a'.*control character"),
        ({"a": "\udfff"}, "value of header 'a'.*surrogate"),
    ],
)
def test_headers_are_strings_by_name(headers, said):
    with pytest.raises(OutboxError, match=said):
        encoded(headers=headers)


def test_headers_of_the_event_win_over_those_of_the_trace():
    events = [Event("t", "y", 1, headers={"traceparent": "mine", "a": ""}), Event("t", "y", 2)]
    mine, traced = encode_events(events, {"traceparent": "00-1", "tracestate": "x"}, MAX_PAYLOAD_BYTES)
    assert json.loads(mine.headers) == {"traceparent": "mine", "tracestate": "x", "a": ""}
    assert json.loads(traced.headers) == {"traceparent": "00-1", "tracestate": "x"}
    assert encoded().headers == "{}"


def test_an_id_is_kept_and_one_that_is_no_uuid_is_refused():
    wanted = UUID("00000000-0000-0000-0000-000000000001")
    assert encoded(id=wanted).id == wanted
    with pytest.raises(OutboxError, match="id of an event is a str"):
        encoded(id=str(wanted))


def test_no_error_repeats_the_payload():
    for payload in (b'{"password": "hunter2"', {"password": "hunter2\0"}, "hunter2" * 200_000):
        with pytest.raises(OutboxError) as caught:
            encode_payload(payload)
        assert "hunter2" not in str(caught.value)
