"""The target made ready for the tables of the source: what is missing is made, and what does not fit is told."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import psycopg
from psycopg import sql

from headwater.postgres.catalog import Column, Table, list_columns, list_tables, select_tables
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.postgres.types import Types
from headwater.spark.sinks.postgres import statements
from headwater.spark.sinks.postgres.evolution import Evolution
from headwater.spark.sinks.postgres.reshape import Reshaper
from headwater.spark.sinks.postgres.target import Misfit, Sent, Target, fit, narrowed, read_targets, require_writable

_FULL, _NOTHING = "f", "n"


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as the source has it; the types of its columns are named with their schema."""

    table: Table
    columns: tuple[Column, ...]

    @property
    def sent(self) -> Sent:
        names = tuple(column.name for column in self.columns)
        has_identity = self.table.replica_identity not in (_FULL, _NOTHING)
        # Without a key, by which none of its rows can change, a table only gets new ones.
        return Sent(names, (tuple(self.table.identity) or None) if has_identity else None, tuple(self.table.key))


def read_source(url: str, tables: Sequence[str]) -> list[SourceTable]:
    """The tables by name or pattern, with the columns whose values are sent: not those that are generated."""
    return _read(url, lambda known: select_tables(known, tables))


def read_tables(url: str, tables: Iterable[tuple[str, str]]) -> list[SourceTable]:
    """Those of the tables, by schema and name, that are still there."""
    wanted = set(tables)
    return _read(url, lambda known: [table for table in known if (table.schema, table.name) in wanted])


def _read(url: str, choose: Callable[[Sequence[Table]], list[Table]]) -> list[SourceTable]:
    with translated(url), closing(connect_sync(url)) as connection:
        chosen = choose(list_tables(connection))
        execute_sync(connection, statements.clear_search_path())
        columns = list_columns(connection, [table.oid for table in chosen])
    by_table = {table.oid: [c for c in columns if c.table_oid == table.oid and not c.generated] for table in chosen}
    return [SourceTable(table, tuple(by_table[table.oid])) for table in chosen]


def is_source(connection: Connection, source_url: str) -> bool:
    """Whether a connection to the target leads to the source itself."""
    with translated(source_url), closing(connect_sync(source_url)) as source:
        return fetch_sync(source, statements.find_place()) == fetch_sync(connection, statements.find_place())


@dataclass(frozen=True, slots=True)
class Expected:
    """What tables of the target may look like: `creates` if they may be missing, `is_narrow` if they may lack columns.

    Those that are `followed` were the source's once, and are altered when the changes of its new shape come.
    """

    creates: bool
    is_narrow: bool = False
    followed: Container[tuple[str, str]] = ()


def problems(connection: Connection, tables: Sequence[SourceTable], expected: Expected) -> Iterator[str]:
    """What stands in the way of writing to the target, each with its remedy. Writes nothing."""
    targets, creates = _targets(connection, tables), expected.creates
    for source in tables:
        name = (source.table.schema, source.table.name)
        target = targets.get(name)
        if target is not None:
            is_narrow = expected.is_narrow
            yield from (_unusable(target) if name in expected.followed else _misfit(target, source, is_narrow=is_narrow))
        elif not creates:
            yield f"table {source.table} is missing in the target; create it, or set create_tables = true"
        else:
            yield from _missing_types(connection, source)


def require_fit(connection: Connection, tables: Sequence[SourceTable], expected: Expected) -> None:
    """Raise Misfit for the first of what stands in the way."""
    found = list(problems(connection, tables, expected))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise Misfit(f"{found[0]}{more}")


def create_missing(connection: Connection, tables: Sequence[SourceTable]) -> None:
    """Make the tables that are missing, with the primary keys that they have at the source; raises Misfit.

    One whose rows the source names by other columns gets a unique index on these.
    """
    targets = _targets(connection, tables)
    for source in tables:
        schema, name = source.table.schema, source.table.name
        if (schema, name) in targets:
            continue
        columns = [(column.name, column.type_name, column.not_null) for column in source.columns]
        sent = {column.name for column in source.columns}
        key = source.table.key if set(source.table.key) <= sent else ()
        try:
            execute_sync(connection, statements.create_schema(schema))
            execute_sync(connection, statements.create_table(sql.Identifier(schema, name), columns, key))
            Reshaper(connection, (schema, name)).follow(Evolution(), source.sent.identity or ())
        except psycopg.errors.InsufficientPrivilege as exc:
            user = connection.info.user
            raise Misfit(
                f"role {user} may not make table {source.table} in the target; make it, or run "
                f"`grant create on database {connection.info.dbname} to {user}`"
            ) from exc


def _targets(connection: Connection, tables: Sequence[SourceTable]) -> dict[tuple[str, str], Target]:
    return read_targets(connection, [(source.table.schema, source.table.name) for source in tables])


def _misfit(target: Target, source: SourceTable, *, is_narrow: bool) -> Iterator[str]:
    try:
        fit(target, narrowed(target, source.sent) if is_narrow else source.sent, Types.builtin())
    except Misfit as misfit:
        yield str(misfit)


def _unusable(target: Target) -> Iterator[str]:
    try:
        require_writable(target)
    except Misfit as misfit:
        yield str(misfit)


def _missing_types(connection: Connection, source: SourceTable) -> Iterator[str]:
    wanted = {column.type_name: column.name for column in source.columns}
    for name in fetch_sync(connection, statements.find_missing_types(list(wanted))):
        yield (
            f"table {source.table} has column {wanted[name]!r} of type {name}, which the target does not have; create the "
            f"type there, or the extension that brings it"
        )
