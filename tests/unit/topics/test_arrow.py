"""Frames as columns of Arrow say the same as frames that are read message by message."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.topics.append import FRAME_BYTES
from headwater.topics.arrow import MESSAGES, partitions_of, to_frames, to_messages
from headwater.topics.encoded import Encoded
from headwater.topics.frame import Framed, encode_frame, read_messages
from headwater.topics.message import Message, encode_message, partition_of

NOW = datetime(2026, 11, 16, 12, 0, 0, 123456, tzinfo=UTC)

texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8)
messages = st.tuples(st.binary(max_size=12), st.none() | texts, st.none() | st.dictionaries(texts, texts, max_size=3)).map(
    lambda given: Message(*given)
)
frames = st.lists(st.tuples(st.lists(messages, min_size=1, max_size=5), st.booleans()), max_size=5)


def log_of(framed: list[Framed]) -> pa.RecordBatch:
    ends, last = [], -1
    for one in framed:
        last += one.count
        ends.append(last)
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([3] * len(framed), pa.int32()),
            "last_offset": pa.array(ends, pa.int64()),
            "count": pa.array([one.count for one in framed], pa.int32()),
            "codec": pa.array([one.codec for one in framed], pa.int16()),
            "created_at": pa.array([NOW] * len(framed), pa.timestamp("us", "UTC")),
            "frame": pa.array([one.frame for one in framed], pa.binary()),
        }
    )


def encoded(groups: list[tuple[list[Message], bool]]) -> list[Framed]:
    return [
        encode_frame(Encoded.of(encode_message(one, 1000) for one in group), compresses=packs) for group, packs in groups
    ]


def as_messages(rows: pa.RecordBatch) -> list[Message]:
    return [
        Message(row["payload"], row["key"], dict(row["headers"] or ()), row["partition"], row["offset"], row["created_at"])
        for row in rows.to_pylist()
    ]


@given(frames)
def test_columns_hold_what_the_messages_of_the_frames_are(groups):
    framed = encoded(groups)
    expected, last = [], -1
    for one in framed:
        last += one.count
        expected += read_messages(one, 3, last, NOW)
    found = to_messages(log_of(framed))
    assert found.schema == MESSAGES
    assert as_messages(found) == expected


@given(frames, st.integers(0, 4))
def test_a_part_of_the_rows_is_read_like_all_of_them(groups, first):
    """Arrow does not copy what it cuts: the buffers are those of all rows."""
    rows = log_of(encoded(groups))
    whole = as_messages(to_messages(rows))
    skipped = sum(rows["count"].to_pylist()[:first])
    assert as_messages(to_messages(rows.slice(first))) == whole[skipped:]


@given(st.lists(messages, max_size=20), st.integers(1, 4), st.booleans())
def test_columns_become_frames_that_hold_the_same_messages_in_the_order_of_each_partition(given_messages, count, compresses):
    written = [encode_message(one, 1000) for one in given_messages]
    keys = pa.array([one.key for one in given_messages], pa.string())
    payloads = pa.array([payload for payload, *_ in written], pa.binary())
    headers = pa.array([headers.decode() or None for _, _, headers, _ in written], pa.string())
    partitions = partitions_of(keys, count, unkeyed=count - 1)
    found: dict[int, list[Message]] = {}
    for partition, framed in to_frames(keys, payloads, headers, partitions, compresses=compresses):
        found.setdefault(partition, []).extend(read_messages(framed, partition, framed.count - 1, NOW))
    expected: dict[int, list[tuple[object, ...]]] = {}
    for one in given_messages:
        partition = count - 1 if one.key is None else partition_of(one.key.encode(), count)
        expected.setdefault(partition, []).append((one.payload, one.key, one.headers or {}))
    assert {place: [(one.payload, one.key, one.headers) for one in many] for place, many in found.items()} == expected


def test_a_frame_ends_with_the_message_that_fills_it():
    payloads = pa.array([b"x" * (FRAME_BYTES // 4)] * 10, pa.binary())
    nothing = pa.nulls(10, pa.string())
    counts = [one.count for _, one in to_frames(nothing, payloads, nothing, np.zeros(10, np.int64), compresses=False)]
    assert counts == [4, 4, 2]
