"""The statements of snapshots on request, typed, and the condition of rows that a plain schema cannot hold."""

from collections.abc import Sequence
from typing import Final

from psycopg import sql

from headwater.creek.types import ColumnType, Form, column_type
from headwater.postgres.replication.messages import Relation
from headwater.postgres.statements import Statement, load
from headwater.postgres.types import Types

SQL: Final = load("headwater.spark.creek")


def approximate_rows(oid: int) -> Statement[int]:
    return SQL["approximate_rows"].bind(int, oid=oid)


def find_misfit(part: Sequence[str], misfit: sql.Composable, row_filter: str) -> Statement[None]:
    """A row if a part of a table has one that is a misfit."""
    # The server's own text.
    condition = sql.SQL(row_filter)
    return SQL["find_misfit"].compose(part=sql.Identifier(*part), misfit=misfit, row_filter=condition)


def misfit(relation: Relation, types: Types) -> sql.Composable | None:
    """The condition that a row is beyond its table's plain schema; None if no row can be."""
    conditions = [
        condition
        for column in relation.columns
        if (condition := _misfit_of(column_type(types, column.type_oid, column.typmod), types, sql.Identifier(column.name)))
    ]
    return sql.SQL(" or ").join(sql.SQL("({})").format(one) for one in conditions) if conditions else None


def _misfit_of(type_: ColumnType, types: Types, value: sql.Composable) -> sql.Composable | None:
    """The condition that a value does not go into its column's type on the wire."""
    if not type_.can_misfit:
        return None
    if not type_.is_array:
        return _misfit_of_form(type_, types, value)
    element = _misfit_of_form(type_, types, sql.Identifier("element", "value"))
    return _filled("is_unusual_array", value=value, misfit=element)


def _misfit_of_form(type_: ColumnType, types: Types, value: sql.Composable) -> sql.Composable:
    match type_.form:
        case Form.NUMERIC:
            return _filled("is_not_null", value=value)
        case Form.DECIMAL:
            return _filled("is_not_finite", value=value)
        case Form.TIMESTAMP:
            is_zoned = types.resolve(type_.oid)[0].name == "timestamptz"
            return _filled("is_after_timestamptzs" if is_zoned else "is_after_timestamps", value=value)
        case _:
            return sql.SQL("false")


def _filled(name: str, **parts: sql.Composable) -> sql.Composable:
    return SQL[name].compose(**parts).query
