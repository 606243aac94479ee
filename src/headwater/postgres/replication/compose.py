"""Messages as the server would have sent them, for rows that did not come through the stream. Pure."""

import struct
from collections.abc import Sequence

from headwater.postgres.replication.messages import Relation


def describe_relation(relation: Relation) -> bytes:
    """The Relation message of a table."""
    head = struct.pack("!cI", b"R", relation.oid) + _string(relation.schema) + _string(relation.name)
    columns = (
        struct.pack("!B", column.key) + _string(column.name) + struct.pack("!Ii", column.type_oid, column.typmod)
        for column in relation.columns
    )
    return head + relation.identity.encode() + struct.pack("!H", len(relation.columns)) + b"".join(columns)


def insert_row(oid: int, row: Sequence[str | None]) -> bytes:
    """The Insert message of a row of texts."""
    return struct.pack("!cIcH", b"I", oid, b"N", len(row)) + b"".join(map(_value, row))


def _value(text: str | None) -> bytes:
    if text is None:
        return b"n"
    data = text.encode()
    return struct.pack("!cI", b"t", len(data)) + data


def _string(text: str) -> bytes:
    return text.encode() + b"\0"
