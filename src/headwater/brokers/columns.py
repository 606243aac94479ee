"""What becomes of each message's attributes, as columns: for brokers that build what they send without a loop in Python.

And as rows, for few messages: each call of Arrow costs as much as one of these in Python.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.brokers.base import cloud_event
from headwater.model import Messages

Integers = npt.NDArray[np.int64]

# Measured with RabbitMQ and NATS: from about 150 messages on, columns are faster.
FEW: Final = 100
_EPOCH: Final = datetime(1970, 1, 1)


class Row(NamedTuple):
    """One message without its payload and topic; `time` is that of `instants`, and `seconds` are those since 1970."""

    id: str
    type: str
    key: str | None
    content_type: str
    headers: Sequence[tuple[str, str]]
    seconds: int
    time: str

    def event(self, source: str) -> dict[str, str]:
        """The attributes of `event_columns`, without those that are null."""
        return cloud_event(self.id, source, self.type, self.time, self.key)


def rows(messages: Messages) -> Iterator[Row]:
    """The messages one by one; a time beyond the calendar of Python is an OverflowError."""
    names = ("id", "type", "key", "content_type")
    headers = _pairs(messages)
    times = messages.column("created_at").view(pa.int64()).to_pylist()
    values = zip(*(messages.column(name).to_pylist() for name in names), headers, times, strict=True)
    for id, type, key, content_type, own, micros in values:
        time = (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds") + "Z"
        yield Row(id, type, key, content_type, own, micros // 1_000_000, time)


def _pairs(messages: Messages) -> Sequence[Sequence[tuple[str, str]]]:
    """The headers of each message; those of Arrow's own lists cost ten times as much."""
    if not len(messages.column("headers").keys):
        return [()] * len(messages)
    names, values, offsets = header_entries(messages)
    pairs, ends = list(zip(names.to_pylist(), values.to_pylist(), strict=True)), offsets.to_pylist()
    return [pairs[start:end] for start, end in pairwise(ends)]


def lengths(values: pa.Array) -> Integers:
    """How many bytes each value has; read from where they begin, since a call of Arrow costs as much as a hundred values."""
    if values.null_count:
        return np.asarray(pc.fill_null(pc.binary_length(values), 0), dtype=np.int64)
    found = starts(values)
    return found[1:] - found[:-1]


def starts(values: pa.Array) -> Integers:
    """Where each value begins; the last is the end."""
    kind = np.int64 if values.type in (pa.large_binary(), pa.large_string()) else np.int32
    if not len(values):
        return np.zeros(1, np.int64)
    return np.frombuffer(values.buffers()[1], kind)[values.offset : values.offset + len(values) + 1].astype(np.int64)


def event_columns(messages: Messages, source: str) -> dict[str, pa.Array | pa.Scalar]:
    """The attributes of `cloud_event` by name: one value that all messages share, or a column, null where there is none."""
    return {
        "specversion": pa.scalar("1.0"),
        "id": messages.column("id"),
        "source": pa.scalar(source),
        "type": messages.column("type"),
        "time": instants(messages.column("created_at")),
        "partitionkey": messages.column("key"),
    }


def instants(times: pa.Array) -> pa.Array:
    """Times of RFC 3339, in UTC and with microseconds."""
    # Without the zone, which needs a database of zones that not every machine has; strftime takes ten times as long.
    texts = times.cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_join_element_wise(pc.replace_substring(texts, " ", "T"), "Z", "")


def header_entries(messages: Messages) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Names and values of the headers of all messages one after another, and where each message's begin and end."""
    column = messages.column("headers")
    names, values = column.keys, pc.fill_null(column.items, "")
    return names, values, column.offsets


def gathered(entries: pa.Array, offsets: pa.Array) -> pa.Array:
    """What was made of each header, joined for each message."""
    lists = pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), entries)
    return pc.binary_join(lists, pa.scalar(b"", entries.type))


def holders(is_marked: pa.Array, names: pa.Array, offsets: pa.Array) -> dict[int, str]:
    """The messages with a header that is marked, by place, and the name of the first such header of each."""
    found: dict[int, str] = {}
    for place in pc.indices_nonzero(is_marked).to_pylist():
        at = int(np.searchsorted(np.asarray(offsets), place, side="right")) - 1
        if 0 <= at < len(offsets) - 1:
            found.setdefault(at, names[place].as_py())
    return found
