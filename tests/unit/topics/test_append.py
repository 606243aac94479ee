"""How messages are cut into frames."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import TopicError
from headwater.topics import Topic
from headwater.topics.append import FRAME_BYTES, encode_messages, frame_messages, partitions_for
from headwater.topics.encoded import Encoded
from headwater.topics.frame import read_messages
from headwater.topics.message import Message
from tests.support.topics.message_columns import encoded, rows_of

AT = datetime(2026, 1, 1, tzinfo=UTC)


def topic(partitions=4):
    return Topic(1, "orders", partitions, False, None, None, 1 << 20, AT)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 10, 60_000, 200_000])), min_size=1, max_size=30))
def test_messages_of_a_partition_keep_their_order_in_frames_that_are_not_too_large(given_messages):
    messages = encoded(
        *(Message(bytes([place]) * size, str(key) if key else None) for place, (key, size) in enumerate(given_messages))
    )
    partitions, frames = frame_messages(topic(), messages, 2)
    assert partitions == sorted(partitions)
    for partition in range(4):
        of_it = [one for place, one in zip(partitions, frames, strict=True) if place == partition]
        read = [message.payload for frame in of_it for message in read_messages(frame, 0, 0, AT)]
        places = partitions_for(topic(), messages, 2)
        assert read == [payload for payload, place in zip(messages.payloads, places, strict=True) if place == partition]
        assert all(frame.count == 1 or len(frame.frame) <= FRAME_BYTES + 1 + 8 * frame.count for frame in of_it)


def test_small_messages_share_a_frame_and_a_large_one_has_its_own():
    partitions, frames = frame_messages(topic(1), encoded(*(Message(b"x" * 100) for _ in range(1000))), 0)
    assert (partitions, frames[0].count) == ([0], 1000)
    partitions, frames = frame_messages(topic(1), encoded(Message(b"x"), Message(bytes(500_000)), Message(b"y")), 0)
    assert [frame.count for frame in frames] == [1, 1, 1]
    assert frame_messages(topic(), Encoded([], []), 0) == ([], [])


@pytest.mark.parametrize("other", [Message(b"x", "k"), Message(b"x", None, {"n": "v"}), Message({"n": 1}), Message(b"")])
def test_many_messages_are_written_as_each_would_be_by_itself(other):
    messages = [Message(b"one"), other, Message(b"three")]
    assert rows_of(encode_messages(topic(), iter(messages))) == rows_of(encoded(*messages))
    assert len(encode_messages(topic(), [])) == 0


@pytest.mark.parametrize("other", [b"x", None, Message(bytes(2 << 20)), Message(b"x", partition=0), Message(b"x", offset=0)])
def test_one_that_cannot_be_appended_is_found_among_many(other):
    with pytest.raises(TopicError):
        encode_messages(topic(), [Message(b"one"), other])
