"""Jobs as they are given, and what cannot be one."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import JobError
from headwater.queue import NewJob
from headwater.queue.job import MAX_BYTES, Unreadable, decode_payload, encode_payload, job_faults, queue_fault

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(JSON)
def test_a_payload_comes_back_as_it_was_or_is_refused(value):
    try:
        text = encode_payload(NewJob("send", value))
    except JobError:
        shown = repr(value)
        assert "\\x00" in shown or "\\ud" in shown
        return
    assert json.loads(text) == value
    assert decode_payload(text) == value
    text.encode()


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "a\\u0000b", "\\"])
def test_a_backslash_is_a_character_as_others_are(text):
    assert json.loads(encode_payload(NewJob("send", text))) == text


@pytest.mark.parametrize("text", ["\0", "a\0", "\\\0", "\ud800", "\udfff", "ok \ud83d"])
def test_a_character_that_postgresql_cannot_keep_is_refused(text):
    for payload in (text, [text], {"k": text}, {text: 1}):
        with pytest.raises(JobError, match="a character that PostgreSQL cannot keep"):
            encode_payload(NewJob("send", payload))


def nested(depth):
    value: object = None
    for _ in range(depth):
        value = [value]
    return value


def itself():
    value: list[object] = []
    value.append(value)
    return value


NO_JSON = {
    "an object": object(),
    "a set": {1, 2},
    "bytes": b"bytes",
    "no number": float("nan"),
    "endless": -float("inf"),
    "keys": {(1, 2): 3},
    "many digits": 10**5000,
    "within itself": itself(),
    "deep": nested(100_000),
}


@pytest.mark.parametrize("payload", NO_JSON.values(), ids=NO_JSON)
def test_what_is_no_json_is_refused(payload):
    with pytest.raises(JobError, match="cannot be written as JSON"):
        encode_payload(NewJob("send", payload))


def test_a_payload_over_the_limit_is_refused_by_its_bytes():
    assert encode_payload(NewJob("send", "x" * (MAX_BYTES - 2)))
    with pytest.raises(JobError, match=f"has {MAX_BYTES + 1} bytes, and {MAX_BYTES} are the most"):
        encode_payload(NewJob("send", "x" * (MAX_BYTES - 1)))
    with pytest.raises(JobError, match="are the most"):
        encode_payload(NewJob("send", "ä" * (MAX_BYTES // 2)))
    with pytest.raises(JobError, match="has 7 bytes, and 3 are the most"):
        encode_payload(NewJob("send", "12345"), 3)


@pytest.mark.parametrize("name", ["kind", "queue", "key", "unique", "idempotency_key"])
@pytest.mark.parametrize("value", ["", "x" * 201, "a\0b", "\ud800", 5, b"x", True])
def test_names_are_texts_of_moderate_length(name, value):
    (fault, *_) = job_faults(replace(NewJob("send"), **{name: value}))
    assert f"the {name} of a job is a text of 1 to 200 characters" in fault


@pytest.mark.parametrize("name", ["a", "A9", "mail.eu-1_x", "0", "x" * 100])
def test_a_queue_has_a_plain_name(name):
    assert queue_fault(name) is None


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "ä", "x" * 101, "a\n", "a;b", None, 5])
def test_what_is_no_plain_name_is_no_queue(name):
    assert "cannot be a queue" in (queue_fault(name) or "")


@pytest.mark.parametrize("priority", [-1, 10, 1.0, "1", None, True])
def test_a_priority_is_a_number_from_0_to_9(priority):
    (fault,) = job_faults(NewJob("send", priority=priority))
    assert "give one from 0 to 9" in fault


class Nowhere(tzinfo):
    def utcoffset(self, dt):
        return None

    dst = tzname = utcoffset


@pytest.mark.parametrize(
    "run_at",
    [
        datetime(2030, 1, 1),
        datetime(2030, 1, 1, tzinfo=Nowhere()),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        "2030-01-01",
        5,
        timedelta(hours=1),
    ],
)
def test_a_time_is_the_same_for_everybody(run_at):
    (fault,) = job_faults(NewJob("send", run_at=run_at))
    assert "give a datetime with a time zone" in fault


def test_a_good_job_has_no_faults():
    good = NewJob("send", 1, "mail", datetime(2030, 1, 1, tzinfo=UTC), 9, "k", "u", "i")
    assert job_faults(good) == job_faults(NewJob("send")) == []


@pytest.mark.parametrize("given", ["send", None, {"kind": "send"}])
def test_what_is_no_job_at_all_is_said_so(given):
    with pytest.raises(JobError, match=r"a job is a headwater\.queue\.NewJob"):
        encode_payload(given)


@pytest.mark.parametrize(("data", "error_class"), [("9" * 5000, "ValueError"), ("[" * 100_000, "RecursionError")])
def test_a_payload_that_python_cannot_read_is_told_of_by_a_value(data, error_class):
    found = decode_payload(data)
    assert isinstance(found, Unreadable)
    assert found.error_class == error_class
