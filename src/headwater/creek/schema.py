"""Avro schemas of tables as Creek writes them: the envelope of a change with the old and the new row, and a snapshot's row.

The widened schema of a table has one more branch, a string, at the end of each column that may hold what Creek's schema
cannot. It has a fingerprint of its own, and holds every row. A name that is no name in Avro is replaced by one that is made
from it, and the true one stands beside it as `pgName`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from headwater.creek.fingerprint import fingerprint_of, fingerprint_text
from headwater.creek.names import Generation
from headwater.creek.types import ColumnType, Form, column_type
from headwater.postgres.replication.messages import Relation
from headwater.postgres.types import Types

INFINITY: Final = "infinity"
# A name in Avro has no sign.
NEGATIVE_INFINITY: Final = "negative_infinity_ca5991f51367e3e4"
OPS: Final = ("c", "u", "u_pk", "d", "t", "r")

_INFINITY_ENUM: Final = "infinity_modifier"
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_IN_NAME = re.compile(rb"\A[0-9]|[^A-Za-z0-9_]")
# As many tables, each in some versions and forms, as a producer meets at a time.
_CACHED = 1024


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema as it is published; `fingerprint` is big-endian, and `name` is the same as text."""

    text: str
    fingerprint: bytes
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", fingerprint_text(self.fingerprint))


@dataclass(frozen=True, slots=True)
class RowField:
    """A column as a field of a row's record; `name` is its name in Avro."""

    name: str
    column: str
    is_key: bool
    is_nullable: bool
    type: ColumnType

    def branches(self, *, widened: bool) -> list[str]:
        """What the field is a union of, by kind: null, value, infinity, string. One branch alone is no union."""
        found = ["null"] if self.is_nullable else []
        found.append("value")
        if self.type.form.has_infinities and not self.type.is_array:
            found.append("infinity")
        if widened and self.type.can_misfit:
            found.append("string")
        return found


@dataclass(frozen=True, slots=True)
class RowRecord:
    """A table as a record: `name` is its name in Avro."""

    name: str
    table: str
    fields: tuple[RowField, ...]

    @property
    def key(self) -> "RowRecord":
        """The record of the replica identity's columns."""
        return RowRecord(self.name, self.table, tuple(each for each in self.fields if each.is_key))


def row_record(relation: Relation, types: Types) -> RowRecord:
    """The record of a table's rows.

    Only the columns of a key that is the table's default identity are never NULL; whether others may be is not told.
    """
    is_default, is_full = relation.identity == "d", relation.identity == "f"
    names = avro_names(column.name for column in relation.columns)
    fields = (
        RowField(
            name,
            column.name,
            column.key or is_full,
            not (is_default and column.key),
            column_type(types, column.type_oid, column.typmod),
        )
        for name, column in zip(names, relation.columns, strict=True)
    )
    (name,) = avro_names([relation.name], taken={_INFINITY_ENUM})
    return RowRecord(name, relation.name, tuple(fields))


def can_misfit(relation: Relation, types: Types) -> tuple[str, ...]:
    """The columns that may hold values which the table's schema cannot."""
    return tuple(column.name for column in relation.columns if column_type(types, column.type_oid, column.typmod).can_misfit)


def wal_schema(relation: Relation, types: Types, generation: Generation, *, widened: bool = False) -> AvroSchema:
    """The schema of a table's changes."""
    return _wal_schema(row_record(relation, types), generation, widened)


def row_schema(relation: Relation, types: Types, *, widened: bool = False) -> AvroSchema:
    """The schema of the rows of a table's snapshots."""
    return _row_schema(row_record(relation, types), widened)


@lru_cache(_CACHED)
def _wal_schema(row: RowRecord, generation: Generation, widened: bool) -> AvroSchema:
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    last_lsn = [("last_lsn", "string")] if generation is Generation.ONE else []
    source = [
        *(("name", "string"), ("tx_at", moment), ("db", "string"), ("schema", "string"), ("table", "string")),
        *(("tx_id", "long"), *last_lsn, ("lsn", "string")),
    ]
    fields = [
        ("fingerprint", "string"),
        ("source", _record("source", source)),
        ("op", {"name": "op", "type": "enum", "symbols": list(OPS)}),
        ("sent_at", moment),
        ("before", ["null", _row(row.key, "before.", widened)]),
        ("after", ["null", _row(row, "after.", widened)]),
    ]
    return _schema(_record("publish_message", fields))


@lru_cache(_CACHED)
def _row_schema(row: RowRecord, widened: bool) -> AvroSchema:
    # Creek writes this one itself, and the other one by way of an Avro library, which puts keys into another order.
    order = ("name", "type", "pgType", "pgKey", "pgName")
    fields = [{key: each[key] for key in order if key in each} for each in _row_fields(row, "", widened)]
    return _schema({"type": "record", "name": row.name} | _true_name(row.name, row.table) | {"fields": fields})


def _schema(content: dict[str, object]) -> AvroSchema:
    return AvroSchema(json.dumps(content, ensure_ascii=False, separators=(",", ":")), fingerprint_of(content))


def _record(name: str, fields: Iterable[tuple[str, object]]) -> dict[str, object]:
    return {"name": name, "type": "record", "fields": [{"name": name, "type": type_} for name, type_ in fields]}


def _row(row: RowRecord, prefix: str, widened: bool) -> dict[str, object]:
    name = {"name": prefix + row.name, "type": "record"}
    return name | _true_name(row.name, row.table) | {"fields": _row_fields(row, prefix, widened)}


def _row_fields(row: RowRecord, prefix: str, widened: bool) -> list[dict[str, object]]:
    enum = _infinity_enum(prefix + _INFINITY_ENUM)
    return [_field(each, enum, widened) for each in row.fields]


def _field(each: RowField, enum: Iterator[object], widened: bool) -> dict[str, object]:
    members = [_member(branch, each.type, enum) for branch in each.branches(widened=widened)]
    content = {"name": each.name, "type": members if len(members) > 1 else members[0], "pgKey": each.is_key}
    return content | _true_name(each.name, each.column) | {"pgType": each.type.pg_type}


def _member(branch: str, type_: ColumnType, enum: Iterator[object]) -> object:
    match branch:
        case "value":
            return _array(type_, enum) if type_.is_array else _avro(type_)
        case "infinity":
            return next(enum)
        case _:
            return branch


def _true_name(name: str, pg_name: str) -> dict[str, object]:
    return {} if name == pg_name else {"pgName": pg_name}


def _array(type_: ColumnType, enum: Iterator[object]) -> dict[str, object]:
    items = _avro(type_)
    return {"type": "array", "items": [items, next(enum)] if type_.form.has_infinities else items}


def _infinity_enum(name: str) -> Iterator[object]:
    """The enum of the infinities: defined where it is used first, and then referred to."""
    yield {"name": name, "type": "enum", "symbols": [INFINITY, NEGATIVE_INFINITY]}
    while True:
        yield name


_PLAIN: Final[dict[Form, object]] = {
    Form.BOOLEAN: "boolean",
    Form.INT: "int",
    Form.LONG: "long",
    Form.FLOAT: "float",
    Form.DOUBLE: "double",
    Form.STRING: "string",
    Form.UUID: {"type": "string", "logicalType": "uuid"},
    Form.JSON: "bytes",
    Form.NUMERIC: "bytes",
    Form.DATE: {"type": "int", "logicalType": "date"},
    Form.TIME: {"type": "long", "logicalType": "time-micros"},
    Form.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
}


def _avro(type_: ColumnType) -> object:
    """The type of a value, for an array of its elements, without the infinities."""
    if type_.form is not Form.DECIMAL:
        return _PLAIN[type_.form]
    scale = {"scale": type_.scale} if type_.scale else {}
    return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, **scale}


def avro_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Names that Avro takes, one for each of those given, no two the same.

    A name that is one already stays. In any other, each byte that has no place becomes `_xHH_`, and should the result be
    taken, underscores are added to it.
    """
    given = list(names)
    used = set(taken)
    kept = {name for name in given if _AVRO_NAME.fullmatch(name)} - used
    used |= kept
    found = []
    for name in given:
        made = name
        if name not in kept:
            made = _NOT_IN_NAME.sub(lambda byte: b"_x%02X_" % ord(byte[0]), name.encode()).decode("ascii")
            while made in used:
                made += "_"
            used.add(made)
        found.append(made)
    return found
