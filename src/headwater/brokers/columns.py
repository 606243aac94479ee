"""What becomes of each message's attributes, as columns: for brokers that build what they send without a loop in Python."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.model import Messages


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
