"""A column's texts to the Arrow types that Spark reads: those of `from_text`, except that a time of day stays text.

Spark knows a type for it only behind a switch that is off in a user's session.
"""

import pyarrow as pa

from headwater.postgres.types import Rejected, Types, arrow_type, from_text


def spark_type(types: Types, oid: int, typmod: int = -1) -> pa.DataType:
    """The Arrow type of a column of this type."""
    found = arrow_type(types, oid, typmod)
    return pa.string() if pa.types.is_time(found) else found


def to_spark(texts: pa.StringArray, types: Types, oid: int, typmod: int = -1) -> tuple[pa.Array, Rejected]:
    """The column in that type, and the indices of values that it cannot hold."""
    return (texts, ()) if pa.types.is_time(arrow_type(types, oid, typmod)) else from_text(texts, types, oid, typmod)
