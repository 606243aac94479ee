"""What a message may be, and where its key leads."""

from datetime import UTC, datetime
from typing import cast

import pytest

from headwater.errors import TopicError
from headwater.topics.message import Message, encode_message, partition_of


@pytest.mark.parametrize(
    ("payload", "written"),
    [
        (b"\x00raw", b"\x00raw"),
        ({"a": [1, None, True]}, b'{"a":[1,null,true]}'),
        ("käse", '"käse"'.encode()),
        (None, b"null"),
    ],
)
def test_bytes_stay_as_they_are_and_other_values_become_json(payload, written):
    assert encode_message(Message(payload), 1000)[0] == written


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Message({1, 2}), "cannot be written as JSON"),
        (Message(float("nan")), "cannot be written as JSON"),
        (Message("a\ud800"), "half of a surrogate pair"),
        (Message(b"", cast("str", 5)), "the key is a int; give a string, or none"),
        (Message(b"", "a\0b"), "the key has a NUL character"),
        (Message(b"", "k" * 1025), "the key has 1025 bytes; at most 1024 are allowed"),
        (Message(b"", None, cast("dict[str, str]", {"n": 1})), "header 'n' is not a string by name and value"),
        (Message(b"x" * 90, "k" * 5, {"n": "v"}), "the message has 104 bytes, and the topic takes at most 100"),
        (
            Message(b"", None, cast("dict[str, str]", [("n", "v")])),
            "the headers are a list; give a dict of strings, or none",
        ),
        (Message(b"", partition=1), r"a place already, with its partition, .*append Message\(message.payload"),
        (Message(b"", offset=0), "a place already, with its offset"),
        (Message(b"", created_at=datetime(2026, 11, 16, tzinfo=UTC)), "a place already, with its created_at"),
        ({"payload": 1}, "a message is a headwater.topics.Message, not a dict"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_reason(message, said):
    with pytest.raises(TopicError, match=said):
        encode_message(message, 100)


def test_a_message_of_just_the_allowed_size_is_written():
    assert encode_message(Message(b"x" * 96, "keys"), 100) == (b"x" * 96, b"keys", b"", 100)


def test_a_payload_reads_as_json_again():
    assert Message(b'{"a":1}').json() == {"a": 1}
    assert Message({"a": 1}).json() == {"a": 1}


def test_a_key_leads_to_its_partition_for_ever():
    # As `zlib.crc32` says, in any program.
    assert [partition_of(key.encode(), 16) for key in ("", "a", "order-1", "käse")] == [0, 3, 15, 7]
