import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.brokers.columns import FEW
from headwater.brokers.nats import Outgoing
from headwater.brokers.nats.frames import build_frames
from headwater.errors import SettingsError

ids = st.text("abc-019/", min_size=1, max_size=30)
lines = st.none() | st.sampled_from([b"", b"A: b\r\n", b"A: b\r\nCd: \r\n"])


def written(subject: str, reply: str, message: tuple[str, bytes, bytes | None]) -> bytes:
    name, payload, more = message
    headers = b"NATS/1.0\r\nNats-Msg-Id: " + name.encode() + b"\r\n" + (more or b"") + b"\r\n"
    line = f"HPUB {subject} {reply} {len(headers)} {len(headers) + len(payload)}\r\n".encode()
    return line + headers + payload + b"\r\n"


# Few are built one by one, and many by columns.
some = st.tuples(
    st.lists(st.tuples(ids, st.binary(max_size=50), lines), min_size=1, max_size=5), st.sampled_from([1, FEW + 1])
).map(lambda made: made[0] * made[1])


@given(some, st.integers(0, 10**6), st.booleans())
def test_a_block_is_what_its_messages_are_one_by_one(messages, first, has_headers):
    names, payloads, more = zip(*messages, strict=True)
    headers = pa.array(more, pa.binary()) if has_headers else None
    outgoing = Outgoing("a.b", pa.array(names), pa.array(payloads, pa.binary()), headers)
    frames = build_frames(outgoing, "in.", first)
    expected = [
        written("a.b", f"in.{first + at}", (name, payload, line if has_headers else None))
        for at, (name, payload, line) in enumerate(messages)
    ]
    assert [bytes(frames.part(at, at + 1)) for at in range(len(messages))] == expected
    assert bytes(frames.part(0, len(messages))) == b"".join(expected)
    sizes = [len(frame) - len(frame.partition(b"\r\n")[0]) - 4 for frame in expected]
    assert outgoing.sizes().tolist() == sizes


@pytest.mark.parametrize("times", [1, FEW + 1])
@given(made=st.lists(st.tuples(ids, st.sampled_from(["a", "b.c", "größe"])), min_size=1, max_size=5))
def test_each_message_may_have_a_subject_of_its_own(times, made):
    messages = made * times
    names, subjects = zip(*messages, strict=True)
    payloads = pa.array([b"x"] * len(messages), pa.binary())
    outgoing = Outgoing("all of them", pa.array(names), payloads, subjects=pa.array(subjects))
    frames = build_frames(outgoing, "in.", 3)
    expected = [written(subject, f"in.{3 + at}", (name, b"x", None)) for at, (name, subject) in enumerate(messages)]
    assert bytes(frames.part(0, len(messages))) == b"".join(expected)
    last = len(messages) - 1
    assert outgoing.part(last, last + 1).subject_of(0) == outgoing.subject_of(last) == subjects[-1]
    chosen = outgoing.chosen(np.array([last]), np.array([0])).subjects
    assert chosen is not None and chosen.to_pylist() == [subjects[-1]]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string()])
def test_part_of_a_slice_is_built_from_where_it_begins(kind):
    payloads = pa.array([b"zero", b"one", b"two", b"three"], pa.binary()).cast(kind).slice(1)
    outgoing = Outgoing("s", pa.array([b"i1", b"i2", b"i3"], pa.binary()), payloads).part(1, 3)
    frames = build_frames(outgoing, "in.", 7)
    expected = [written("s", "in.7", ("i2", b"two", None)), written("s", "in.8", ("i3", b"three", None))]
    assert bytes(frames.part(0, 2)) == b"".join(expected)


def test_rounds_are_written_behind_the_ids():
    outgoing = Outgoing("s", pa.array(["a", "b", "c"]), pa.array([b"1", b"2", b"3"]))
    chosen = outgoing.chosen(np.array([0, 2]), np.array([0, 12]))
    assert chosen.ids.to_pylist() == [b"a", b"c-r12"]
    assert chosen.payloads.to_pylist() == [b"1", b"3"]


def test_columns_of_different_length_are_refused():
    with pytest.raises(SettingsError, match="differ in length"):
        Outgoing("s", pa.array(["a"]), pa.array([b"1", b"2"]))


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0"])
def test_what_is_no_subject_is_refused(subject):
    with pytest.raises(SettingsError, match="is no subject"):
        Outgoing(subject, pa.array(["a"]), pa.array([b"1"]))
    with pytest.raises(SettingsError, match="is no subject"):
        Outgoing("s", pa.array(["a", "b"]), pa.array([b"1", b"2"]), subjects=pa.array(["fine", subject]))
