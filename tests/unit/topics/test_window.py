"""Which messages go out next: the arithmetic against a model, and the cases in which the original text is wrong."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.topics.frame import encode_frame
from headwater.topics.message import Message
from headwater.topics.statements import LogRow
from headwater.topics.window import Buffer, Part, window
from tests.support.topics.message_columns import encoded

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def frame(first, count):
    """A row of the log with messages whose payload is their offset."""
    messages = (Message(str(offset).encode()) for offset in range(first, first + count))
    framed = encode_frame(encoded(*messages), compresses=False)
    return LogRow(0, first + count - 1, count, framed.codec, NOW, framed.frame)


@pytest.mark.parametrize(
    ("available", "most", "expected"),
    [
        pytest.param(0, 100, range(1000, 1000), id="an idle poll reads nothing again"),
        pytest.param(1, 100, range(1000, 1001), id="one message is read without its predecessors"),
        pytest.param(50, 100, range(1000, 1050), id="half a batch is read without repeats"),
        pytest.param(99, 100, range(1000, 1099), id="a batch less one is right, as it was by luck"),
        pytest.param(100, 100, range(1000, 1100), id="a batch as large as what is there loses none"),
        pytest.param(101, 100, range(1000, 1100), id="more than a batch leaves the rest"),
        pytest.param(1, 1, range(1000, 1001), id="the newest message is not lost with batches of one"),
    ],
)
def test_the_window_is_right_where_the_original_text_is_wrong(available, most, expected):
    assert window(1000, 1000 + available - 1, most) == expected


@given(st.integers(0, 1000), st.integers(-1, 1000), st.integers(1, 50))
def test_a_window_is_what_a_reader_would_take_of_a_list(next_offset, tip, most):
    log = list(range(tip + 1))
    assert list(window(next_offset, tip, most)) == log[next_offset : next_offset + most]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=30))
def test_windows_tile_the_log_while_it_grows(steps):
    read: list[int] = []
    next_offset, tip = 0, -1
    for grown, most in steps:
        tip += grown
        taken = window(next_offset, tip, most)
        read += taken
        next_offset = taken.stop
    assert read == list(range(next_offset))


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=12),
    st.integers(0, 7),
    st.lists(st.tuples(st.integers(1, 10), st.integers(1, 60)), min_size=1, max_size=40),
)
def test_a_buffer_gives_out_each_message_once_and_in_order(counts, skipped, takes):
    start = min(skipped, counts[0] - 1)
    buffer, first = Buffer(start), 0
    for count in counts:
        buffer.add(frame(first, count))
        first += count
    given_out: list[int] = []
    for most, most_bytes in takes:
        offsets, rows = buffer.take(most, most_bytes)
        assert len(offsets) <= most
        messages = Part(0, 1, offsets, rows).messages()
        assert [message.offset for message in messages] == list(offsets)
        assert [message.payload for message in messages] == [str(offset).encode() for offset in offsets]
        given_out += offsets
    assert given_out == list(range(start, start + len(given_out)))
    assert len(buffer) == first - start - len(given_out)


def test_a_buffer_takes_a_frame_that_is_larger_than_what_may_be_taken():
    buffer = Buffer(0)
    buffer.add(frame(0, 5))
    buffer.add(frame(5, 5))
    assert buffer.take(100, 1)[0] == range(5)
    assert buffer.take(100, 1)[0] == range(5, 10)
    assert buffer.take(100, 1)[0] == range(10, 10)
