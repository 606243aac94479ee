"""The SQL of the sink, put together for its table."""

from typing import Final

from psycopg import sql

from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.spark.sinks.messages")


def create_table(table: str) -> Statement[None]:
    return SQL["create_table"].compose(table=_identifier(table))


def try_table(table: str) -> Statement[None]:
    return SQL["try_table"].compose(table=_identifier(table))


def copy_messages(table: str) -> Statement[None]:
    return SQL["copy_messages"].compose(table=_identifier(table))


def has_table(table: str) -> Statement[bool]:
    return SQL["has_table"].bind(bool, table=_identifier(table).as_string())


def _identifier(table: str) -> sql.Identifier:
    """Of `schema.table`."""
    return sql.Identifier(*table.split("."))
