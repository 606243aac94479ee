"""What columns that are to be masked or hashed must be. Pure."""

import difflib
from collections.abc import Iterator, Mapping, Sequence

from headwater.cli.check.finding import Finding, error, ok
from headwater.cli.check.tables import Database, goes_as_text
from headwater.postgres.catalog import Column, Table
from headwater.postgres.types.registry import Kind

# The types of the server whose values are plain text.
_TEXT = frozenset({"text", "varchar", "bpchar", "name"})


def check_protected(
    mask: Mapping[str, str], hashed: Sequence[str], chosen: Sequence[Table], database: Database
) -> Iterator[Finding]:
    """Whether each column is there and holds text; one of a key cannot be masked, since all rows would get the same key."""
    columns = {f"{table.schema}.{table.name}.{column.name}": (table, column) for table, column in _columns(chosen, database)}
    for key, name in (*(("mask", name) for name in mask), *(("hash", name) for name in hashed)):
        subject = f"transform.{key} {name}"
        if name not in columns:
            near = difflib.get_close_matches(name, columns, n=1)
            hint = (
                f"did you mean {near[0]}?" if near else "write it as schema.table.column, and name its table in the source"
            )
            yield error(subject, "there is no such column among the tables", hint)
            continue
        table, column = columns[name]
        if not _holds_text(column, database):
            yield error(subject, f"is of type {column.type_name}", "name a column that holds text, or change it by SQL")
        elif key == "mask" and column.name in (*table.key, *table.identity):
            yield error(subject, "belongs to a key, and all rows would get the same", "hash it instead")
        else:
            yield ok(subject, f"is of type {column.type_name}")


def _columns(chosen: Sequence[Table], database: Database) -> Iterator[tuple[Table, Column]]:
    for table in chosen:
        for column in database.columns_of(table):
            yield table, column


def _holds_text(column: Column, database: Database) -> bool:
    type_, _ = database.types.resolve(column.type_oid)
    if type_.kind is not Kind.BASE or type_.element:
        return False
    return type_.name in _TEXT or goes_as_text(column.type_oid, database.types)
