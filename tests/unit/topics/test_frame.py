"""Frames hold messages as columns and give them back as they were."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from headwater.topics.frame import PLAIN, ZSTD, encode_frame, read_messages
from headwater.topics.message import Message
from tests.support.topics.message_columns import encoded

AT = datetime(2026, 1, 1, tzinfo=UTC)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
MESSAGES = st.lists(
    st.tuples(st.binary(max_size=200), st.none() | TEXT, st.none() | st.dictionaries(TEXT, TEXT, max_size=3)).map(
        lambda given: Message(*given)
    ),
    min_size=1,
    max_size=50,
)


def frame(messages, *, compresses=False):
    return encode_frame(encoded(*messages), compresses=compresses)


@given(MESSAGES, st.booleans())
def test_messages_come_back_with_their_offsets(messages, compresses):
    read = read_messages(frame(messages, compresses=compresses), 3, 1000 + len(messages), AT)
    assert [(one.payload, one.key, one.headers) for one in read] == [
        (one.payload, one.key, dict(one.headers or {})) for one in messages
    ]
    assert [one.offset for one in read] == list(range(1001, 1001 + len(messages)))
    assert {(one.partition, one.created_at) for one in read} == {(3, AT)}


def test_nothing_is_compressed_that_does_not_get_smaller():
    assert frame([Message(b"short")], compresses=True).codec == PLAIN
    assert frame([Message(b"long " * 1000)], compresses=True).codec == ZSTD
    assert frame([Message(b"long " * 1000)]).codec == PLAIN


def test_the_layout_is_as_documented():
    framed = frame([Message(b"ab", "k"), Message(b"c", None, {"n": "v"})])
    lengths = b"".join(length.to_bytes(4, "little", signed=True) for length in (1, -1, 2, 1, 0, 9))
    assert framed.frame == b"\x03" + lengths + b"k" + b"abc" + b'{"n":"v"}'
    assert framed.count == 2
