"""The statements by which a table of the target follows that of the source, and those that remember how far it has."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from psycopg import sql

from headwater.model import Lsn, Position
from headwater.postgres.statements import Statement, load
from headwater.spark.frame import Layout, LayoutColumn
from headwater.spark.sinks.postgres.session import Address
from headwater.spark.sinks.postgres.statements import Table, listed, type_named
from headwater.spark.sinks.postgres.target import Target

SQL: Final = load("headwater.spark.sinks.postgres", "sql/layouts.sql")

# What the names of unique indexes begin with that this sink has made.
_PREFIX: Final = "headwater_identity_"


@dataclass(frozen=True, slots=True)
class _Saved:
    schema: str
    table: str
    layout: str
    commit_lsn: Lsn
    ordinal: int


@dataclass(frozen=True, slots=True)
class OwnKey:
    """A unique index that this sink has made."""

    name: str
    columns: list[str]


@dataclass(frozen=True, slots=True)
class Followed:
    """What a table looked like at the source when the target last followed it; so do all changes from `position` on."""

    layout: Layout
    position: Position


def lock_layout(address: Address, table: Table) -> Statement[object]:
    return SQL["lock_layout"].bind(object, number=_number("layout", address.pipeline, address.sink, *table))


def list_layouts(address: Address, tables: Sequence[Table]) -> Statement[_Saved]:
    return SQL["list_layouts"].bind(
        _Saved,
        pipeline=address.pipeline,
        sink=address.sink,
        schemas=[schema for schema, _ in tables],
        tables=[name for _, name in tables],
    )


def parse_layouts(saved: Sequence[_Saved]) -> Mapping[Table, Followed]:
    """What `list_layouts` has found."""
    return {
        (one.schema, one.table): Followed(_parsed(json.loads(one.layout)), Position(one.commit_lsn, one.ordinal))
        for one in saved
    }


def save_layout(address: Address, table: Table, followed: Followed) -> Statement[None]:
    schema, name = table
    return SQL["save_layout"].bind(
        type(None),
        pipeline=address.pipeline,
        sink=address.sink,
        schema=schema,
        table=name,
        layout=json.dumps(asdict(followed.layout)),
        commit_lsn=followed.position.commit_lsn,
        ordinal=followed.position.ordinal,
    )


def forget_layouts(address: Address) -> Statement[None]:
    return SQL["forget_layouts"].bind(type(None), pipeline=address.pipeline, sink=address.sink)


def name_type(column: LayoutColumn) -> Statement[str]:
    return SQL["name_type"].bind(str, type_oid=column.type_oid, typmod=column.typmod)


def list_own_keys(target: Target) -> Statement[OwnKey]:
    table = ".".join('"' + name.replace('"', '""') + '"' for name in (target.schema, target.name))
    return SQL["list_own_keys"].bind(OwnKey, table=table, prefix=_PREFIX)


def add_column(target: Target, name: str, type_name: str) -> Statement[None]:
    return SQL["add_column"].compose(**_column(target, name), type=type_named(type_name))


def add_filled_column(target: Target, name: str, type_name: str, value: str) -> Statement[None]:
    return SQL["add_filled_column"].compose(**_column(target, name), type=type_named(type_name), value=sql.Literal(value))


def drop_default(target: Target, name: str) -> Statement[None]:
    return SQL["drop_default"].compose(**_column(target, name))


def drop_column(target: Target, name: str) -> Statement[None]:
    return SQL["drop_column"].compose(**_column(target, name))


def rename_column(target: Target, old: str, new: str) -> Statement[None]:
    return SQL["rename_column"].compose(**_column(target, old), name=sql.Identifier(new))


def widen_column(target: Target, name: str, type_name: str) -> Statement[None]:
    return SQL["widen_column"].compose(**_column(target, name), type=type_named(type_name))


def retype_column(target: Target, name: str, type_name: str) -> Statement[None]:
    return SQL["retype_column"].compose(**_column(target, name), type=type_named(type_name))


def clear_column(target: Target, name: str, type_name: str) -> Statement[None]:
    return SQL["clear_column"].compose(**_column(target, name), type=type_named(type_name))


def drop_not_null(target: Target, name: str) -> Statement[None]:
    return SQL["drop_not_null"].compose(**_column(target, name))


def add_primary_key(target: Target, columns: Sequence[str]) -> Statement[None]:
    return SQL["add_primary_key"].compose(table=target.identifier, columns=listed(map(sql.Identifier, columns)))


def drop_constraint(target: Target, name: str) -> Statement[None]:
    return SQL["drop_constraint"].compose(table=target.identifier, name=sql.Identifier(name))


def create_identity(target: Target, columns: Sequence[str]) -> Statement[None]:
    name = f"{_PREFIX}{_number(target.schema, target.name, *columns) % 2**64:016x}"
    given = {"name": sql.Identifier(name), "columns": listed(map(sql.Identifier, columns))}
    return SQL["create_identity"].compose(table=target.identifier, **given)


def drop_identity(target: Target, name: str) -> Statement[None]:
    return SQL["drop_identity"].compose(name=sql.Identifier(target.schema, name))


def _column(target: Target, name: str) -> dict[str, sql.Identifier]:
    return {"table": target.identifier, "column": sql.Identifier(name)}


def _parsed(saved: Mapping[str, Any]) -> Layout:
    key = None if saved["key"] is None else tuple(saved["key"])
    columns = tuple(LayoutColumn(**column) for column in saved["columns"])
    return Layout(saved["oid"], columns, key, saved["files"], tuple(saved["others"]))


def _number(*names: str) -> int:
    """A number for an advisory lock, or a name, the same in all processes."""
    return int.from_bytes(hashlib.blake2b("\0".join(names).encode(), digest_size=8).digest(), signed=True)
