"""Messages as the columns of a table, in the text form of COPY. Pure."""

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headwater.brokers.columns import starts


def table_columns(messages: pa.RecordBatch) -> Sequence[pa.Array]:
    """The texts of the columns, in the order of the table; offset and partition stand where a place in the WAL would."""
    return [
        messages["topic"],
        messages["ordinal"].cast(pa.string()),
        messages["commit_lsn"].cast(pa.string()),
        messages["key"],
        _hex(messages["payload"]),
        _objects(messages["headers"]),
        # Without the zone, which needs a database of zones that not every machine has.
        pc.binary_join_element_wise(messages["created_at"].cast(pa.timestamp("us")).cast(pa.string()), "+00", ""),
    ]


def _hex(payloads: pa.BinaryArray) -> pa.Array:
    """All of them at a time: as hexadecimal digits each is twice as long."""
    found = starts(payloads)
    data = memoryview(payloads.buffers()[2] or b"")[found[0] : found[-1]]
    ends = pa.py_buffer((found - found[0]) * 2)
    texts = pa.LargeStringArray.from_buffers(len(payloads), ends, pa.py_buffer(data.hex().encode()))
    return pc.binary_join_element_wise(pa.scalar("\\x", pa.large_string()), texts, pa.scalar("", pa.large_string()))


def _objects(headers: pa.MapArray) -> pa.StringArray:
    if headers.null_count == len(headers):
        return pa.repeat(pa.scalar("{}"), len(headers))
    return pa.array([json.dumps(dict(pairs or ()), ensure_ascii=False) for pairs in headers.to_pylist()], pa.string())
