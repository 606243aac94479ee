"""The shapes that changes have as a DataFrame, and the schemas of those that do not depend on a table."""

from enum import StrEnum
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


class Shape(StrEnum):
    """How a change looks: any table's row as JSON, one table's own columns, or frames of what the server sent."""

    ENVELOPE = "envelope"
    TABLE = "table"
    WIRE = "wire"


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

WIRE: Final = StructType(
    [
        StructField("lane", IntegerType()),
        StructField("changes", LongType()),
        StructField("frame", BinaryType()),
    ]
)
