"""Messages into packets and back, also when packets are missing, repeated or not ours."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.creek.framing import Reassembly, frame, frame_all, packets
from headwater.errors import BrokerError


def test_a_small_message_is_one_packet_with_its_length():
    assert packets(b"abc", 10) == [b"\0\0\0\0\0\x03abc"]
    assert packets(b"", 10) == [b"\0\0\0\0\0\0"]


def test_a_large_message_goes_on_in_packets_with_a_number_only():
    assert packets(b"abcdefg", 3) == [b"\0\0\0\0\0\x07abc", b"\0\x01def", b"\0\x02g"]


def test_an_exact_multiple_has_an_empty_last_packet():
    assert packets(b"abcdef", 3) == [b"\0\0\0\0\0\x06abc", b"\0\x01def", b"\0\x02"]


def test_a_message_with_more_packets_than_numbers_is_refused():
    assert len(packets(b"x" * 65535, 1)) == 65536
    with pytest.raises(BrokerError, match="65536 packets of 1 bytes; raise"):
        packets(b"x" * 65536, 1)


@given(st.lists(st.binary(max_size=30)), st.integers(1, 20), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_many_messages_are_framed_as_each_by_itself(messages, chunk, type_):
    framed = frame(pa.array(messages, type_), chunk)
    expected = [(packet, i, k) for i, each in enumerate(messages) for k, packet in enumerate(packets(each, chunk))]
    found = zip(framed.packets.to_pylist(), framed.messages.tolist(), framed.numbers.tolist(), strict=True)
    assert list(found) == expected
    assert framed.packets.type == type_


def test_a_slice_of_an_array_is_framed_as_what_it_shows():
    messages = pa.array([b"long one", b"b", b"", b"dd"]).slice(1, 3)
    assert frame_all(messages).to_pylist() == [b"\0\0\0\0\0\x01b", b"\0\0\0\0\0\0", b"\0\0\0\0\0\x02dd"]


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.binary(max_size=30)), max_size=8), st.integers(1, 12), st.randoms()
)
def test_messages_come_back_whole_and_in_the_order_of_each_subject(messages, chunk, random):
    waiting = {name: [packet for each, body in messages if each == name for packet in packets(body, chunk)] for name in "ab"}
    found: dict[str, list[bytes]] = {"a": [], "b": []}
    reassembly = Reassembly()
    while any(waiting.values()):
        name = random.choice([name for name in waiting if waiting[name]])
        message = reassembly.add(name, waiting[name].pop(0))
        if message is not None:
            found[name].append(message)
    assert found == {name: [body for each, body in messages if each == name] for name in "ab"}
    assert reassembly.skipped == 0


def test_a_first_packet_begins_anew():
    reassembly = Reassembly()
    first, second, third = packets(b"abcdefg", 3)
    assert [reassembly.add("s", packet) for packet in (first, second, first, second, third)] == [*[None] * 4, b"abcdefg"]
    assert reassembly.skipped == 1


def test_continuations_without_a_beginning_or_with_a_gap_are_left_out():
    reassembly = Reassembly()
    first, second, third = packets(b"abcdefg", 3)
    assert [reassembly.add("s", packet) for packet in (second, third, first, third, second)] == [None] * 5
    assert reassembly.skipped == 4
    assert [reassembly.add("s", packet) for packet in (first, second, third)][-1] == b"abcdefg"


@pytest.mark.parametrize("packet", [b"", b"\0", b"\0\0\0\0", b"\0\0\0\0\0\x01ab", b"\0\x05"])
def test_what_is_no_packet_is_left_out_and_counted(packet):
    reassembly = Reassembly()
    assert reassembly.add("s", packet) is None
    assert reassembly.skipped == 1
    assert reassembly.add("s", packets(b"ok", 10)[0]) == b"ok"


def test_a_continuation_with_more_than_was_announced_gives_the_message_up():
    reassembly = Reassembly()
    assert reassembly.add("s", b"\0\0\0\0\0\x04abc") is None
    assert reassembly.add("s", b"\0\x01defg") is None
    assert reassembly.skipped == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.binary(max_size=5))))
def test_any_packets_at_all_give_messages_of_the_announced_length_only(made):
    reassembly = Reassembly()
    sizes = set()
    for number, size, body in made:
        head = number.to_bytes(2) + (size.to_bytes(4) if number == 0 else b"")
        sizes |= {size} if number == 0 else set()
        message = reassembly.add("s", head + body)
        assert message is None or len(message) in sizes
