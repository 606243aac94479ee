"""The shapes that changes have as a DataFrame, and the schemas of those that do not depend on a table."""

from enum import StrEnum
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


class Shape(StrEnum):
    """How changes look: any table's row as JSON, one table's own columns, or frames of what the server sent.

    Messages of an outbox or a topic have columns of their own, or come packed, many in one value.
    """

    ENVELOPE = "envelope"
    TABLE = "table"
    WIRE = "wire"
    MESSAGE = "message"
    PACKED = "packed"


ENVELOPE: Final = StructType(
    [
        StructField("commit_lsn", LongType()),
        StructField("ordinal", IntegerType()),
        StructField("xid", LongType()),
        StructField("committed_at", TimestampType()),
        StructField("op", StringType()),
        StructField("schema", StringType()),
        StructField("table", StringType()),
        StructField("key", StringType()),
        StructField("before", StringType()),
        StructField("after", StringType()),
        StructField("unchanged", ArrayType(StringType())),
    ]
)

TOPIC: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("key", StringType()),
        StructField("payload", BinaryType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("created_at", TimestampType()),
    ]
)

# An outbox: what a broker is given, and where it was written, which a row that was read from its table does not tell. Of a
# topic, `commit_lsn` is the offset, and `ordinal` the partition.
MESSAGES: Final = StructType(
    [
        StructField("id", StringType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("type", StringType(), nullable=False),
        StructField("key", StringType()),
        StructField("payload", BinaryType(), nullable=False),
        StructField("content_type", StringType(), nullable=False),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("created_at", TimestampType(), nullable=False),
        StructField("commit_lsn", LongType()),
        StructField("ordinal", IntegerType()),
        StructField("xid", LongType()),
    ]
)

# Of both the shapes `wire` and `packed`.
WIRE: Final = StructType(
    [
        StructField("lane", IntegerType()),
        StructField("changes", LongType()),
        StructField("frame", BinaryType()),
    ]
)
