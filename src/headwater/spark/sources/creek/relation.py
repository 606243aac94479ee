"""A table as its Avro schema tells it, in the form that the server's own stream has, so that sinks need no Avro. Pure."""

import hashlib
import struct
from functools import lru_cache

from headwater.creek.consumer.mapping import Target
from headwater.creek.decode.forms import type_oids
from headwater.creek.decode.shape import Field, Record, Schema
from headwater.postgres.replication.messages import Relation, RelationColumn

_TEXT = "text"
# A numeric's modifier has its precision in the upper half and its scale in the lower, and 4 added.
_HEADER = 4
_FULL, _INDEX, _DEFAULT = "fid"


def relation_of(schema: Schema, target: Target) -> Relation:
    """The table under the name of its target.

    Creek says which columns are of the replica identity. That is a primary key if they are never NULL; if all columns are
    among them and may be NULL, the whole row.
    """
    return _relation(schema.after, target)


@lru_cache(maxsize=1024)
def _relation(record: Record, target: Target) -> Relation:
    keys = [field for field in record.fields if field.is_key]
    identity = _DEFAULT
    if keys and all(field.shape.is_nullable for field in keys):
        identity = _FULL if len(keys) == len(record.fields) else _INDEX
    columns = tuple(RelationColumn(field.name, field.is_key, _oid(field), _typmod(field)) for field in record.fields)
    return Relation(oid_of(target), target.schema, target.table, identity, columns)


def oid_of(target: Target) -> int:
    """A number for a table, always the same; its own is not known."""
    return int.from_bytes(hashlib.blake2b(str(target).encode(), digest_size=4).digest()) | 1


def relation_message(relation: Relation) -> bytes:
    """The message by which the server describes a table."""
    names = b"".join(name.encode() + b"\0" for name in (relation.schema, relation.name))
    columns = b"".join(
        bytes([column.key]) + column.name.encode() + b"\0" + struct.pack("!Ii", column.type_oid, column.typmod)
        for column in relation.columns
    )
    head = b"R" + struct.pack("!I", relation.oid) + names + relation.identity.encode()
    return head + struct.pack("!H", len(relation.columns)) + columns


def _oid(field: Field) -> int:
    known = type_oids()
    return known.get(field.pg_type, known[_TEXT])


def _typmod(field: Field) -> int:
    decimal = field.shape.decimal
    if decimal is None or decimal.precision is None or decimal.scale is None:
        return -1
    return (decimal.precision << 16 | decimal.scale) + _HEADER
