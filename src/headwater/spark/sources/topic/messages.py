"""Messages of a topic as rows of Spark's: by their own columns, or as messages for brokers. Pure."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.spark.sources.outbox.messages import SCHEMA
from headwater.topics.arrow import MESSAGES

ROWS: Final = pa.schema([pa.field("topic", pa.string()), *MESSAGES])

# What a message says of itself by headers of these names.
_TYPE, _CONTENT_TYPE = "type", "content-type"
# What nobody has said more of.
_BYTES: Final = "application/octet-stream"


def as_rows(topic: str, messages: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of the source."""
    return pa.RecordBatch.from_arrays([_same(topic, messages), *messages.columns], schema=ROWS)


def as_messages(topic: str, messages: pa.RecordBatch) -> pa.RecordBatch:
    """What a broker is given. The id is `topic/partition/offset`; offset and partition stand where a place in the WAL would.

    The type is the header `type`, or the name of the topic.
    """
    headers, offsets, partitions = (messages[name] for name in ("headers", "offset", "partition"))
    ids = pc.binary_join_element_wise(topic, partitions.cast(pa.string()), offsets.cast(pa.string()), "/")
    columns = [
        ids,
        _same(topic, messages),
        _header(headers, _TYPE, topic),
        messages["key"],
        messages["payload"],
        _header(headers, _CONTENT_TYPE, _BYTES),
        headers,
        messages["created_at"],
        offsets,
        partitions,
        pa.nulls(messages.num_rows, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _header(headers: pa.MapArray, name: str, default: str) -> pa.Array:
    if headers.null_count == len(headers):
        return pa.repeat(pa.scalar(default), len(headers))
    return pc.fill_null(pc.map_lookup(headers, name, "first"), default)


def _same(text: str, messages: pa.RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(text), messages.num_rows)
