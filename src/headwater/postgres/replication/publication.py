"""Publications brought in line with what is wanted: which tables, which operations, under whose name partitions appear.

Reconcile the publication before the slot is made, and before a table's snapshot is taken: the stream holds only changes that
were written while their table was published, and a slot that is older than its publication breaks the stream.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias, assert_never

import psycopg
from psycopg import sql

from headwater.errors import IdentityMissing, SettingsError, SourceError
from headwater.postgres.catalog import Table, leaves_without_identity, list_tables, select_tables
from headwater.postgres.connect import Connection
from headwater.postgres.statements import Statement, execute_sync, fetch_sync, load

_log = logging.getLogger(__name__)

SQL: Final = load("headwater.postgres", "sql/publication.sql")


class Operation(StrEnum):
    """What a publication may hold, in the order in which the manual lists them."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"


ALL_OPERATIONS: Final = frozenset(Operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What is wanted. `tables` are names or patterns; with `via_root` partitions appear under their root's name."""

    name: str
    tables: tuple[str, ...]
    operations: frozenset[Operation] = ALL_OPERATIONS
    via_root: bool = False

    def __post_init__(self) -> None:
        if not 0 < len(self.name.encode()) <= 63:
            raise SettingsError(f"publication name {self.name!r} must have 1 to 63 bytes")
        if not self.tables:
            raise SettingsError(f"publication {self.name!r} needs at least one table")
        if not self.operations:
            raise SettingsError(f"publication {self.name!r} needs at least one operation of {', '.join(Operation)}")


@dataclass(frozen=True, slots=True)
class Found:
    """A publication as it is. Tables are oids; `narrowed` are those with a row filter or a column list."""

    name: str
    owner: str
    is_owner: bool
    all_tables: bool
    inserts: bool
    updates: bool
    deletes: bool
    truncates: bool
    via_root: bool
    generated_columns: bool
    schemas: Sequence[str]
    tables: Sequence[int]
    narrowed: Sequence[int]

    def holds(self, table: Table) -> bool:
        """Whether a table's changes are published, by itself, its parent, or its schema."""
        members = {table.oid, *table.ancestors}
        return self.all_tables or table.schema in self.schemas or not members.isdisjoint(self.tables)

    @property
    def operations(self) -> frozenset[Operation]:
        published = (self.inserts, self.updates, self.deletes, self.truncates)
        return frozenset(operation for operation, is_on in zip(Operation, published, strict=True) if is_on)


@dataclass(frozen=True, slots=True)
class Create:
    """Make the publication."""

    tables: tuple[Table, ...]
    operations: frozenset[Operation]
    via_root: bool

    def __str__(self) -> str:
        return f"create it for {_names(self.tables)}"


@dataclass(frozen=True, slots=True)
class DropTables:
    """Take tables out that are not wanted, or not wanted narrowed."""

    tables: tuple[Table, ...]

    def __str__(self) -> str:
        return f"drop {_names(self.tables)}"


@dataclass(frozen=True, slots=True)
class AddTables:
    """Put tables in, whole."""

    tables: tuple[Table, ...]

    def __str__(self) -> str:
        return f"add {_names(self.tables)}"


@dataclass(frozen=True, slots=True)
class SetOptions:
    """Change what is published of each table."""

    operations: frozenset[Operation]
    via_root: bool

    def __str__(self) -> str:
        return f"publish {_listed(self.operations)}, partitions {'as their root' if self.via_root else 'as themselves'}"


Step: TypeAlias = Create | DropTables | AddTables | SetOptions


def find_publication(connection: Connection, name: str) -> Found | None:
    return next(iter(fetch_sync(connection, SQL["find_publication"].bind(Found, name=name))), None)


def reconcile(connection: Connection, wanted: Publication) -> tuple[Step, ...]:
    """Bring the publication in line, in one transaction, and return what was done; nothing is written if it fits already."""
    if not plan_publication(connection, wanted):
        return ()
    with connection.transaction():
        fetch_sync(connection, SQL["lock_publication"].bind(str, name=wanted.name))
        steps = plan_publication(connection, wanted)
        for step in steps:
            _apply(connection, wanted.name, step)
            _log.debug("publication changed", extra={"publication": wanted.name, "step": str(step)})
    return steps


def plan_publication(connection: Connection, wanted: Publication) -> tuple[Step, ...]:
    """What `reconcile` would do; raises if a table is missing, cannot be published, or has no replica identity."""
    tables = list_tables(connection)
    chosen = choose_tables(wanted, tables)
    return plan(wanted, chosen, find_publication(connection, wanted.name), tables)


def choose_tables(wanted: Publication, tables: Sequence[Table]) -> list[Table]:
    """The tables that are wanted, each of them fit to be published."""
    chosen = select_tables(tables, wanted.tables)
    for table in chosen:
        require_publishable(table)
        if wanted.operations & {Operation.UPDATE, Operation.DELETE}:
            require_identity(table, tables)
    return chosen


def require_publishable(table: Table) -> None:
    """Raise SourceError if the server would not publish such a table."""
    if table.kind not in ("r", "p"):
        kind = {"v": "view", "m": "materialized view", "f": "foreign table"}[table.kind]
        raise SourceError(f"{table} is a {kind}, whose changes are not in the WAL; name the tables that it stands on")
    if table.persistence != "p":
        raise SourceError(f"table {table} is unlogged, so it leaves no WAL to capture; run `alter table {table} set logged`")


def require_identity(table: Table, tables: Sequence[Table]) -> None:
    """Raise IdentityMissing if the table, or a partition of it, has none."""
    for leaf in leaves_without_identity(tables, table):
        raise IdentityMissing(str(leaf))


def plan(wanted: Publication, chosen: Sequence[Table], found: Found | None, tables: Sequence[Table]) -> tuple[Step, ...]:
    """The steps from what is found to what is wanted, in the order in which they can be taken.

    A publication of all tables, or of whole schemas, is left with all that it has, as far as it covers what is wanted.
    """
    if found is None:
        return (Create(tuple(chosen), wanted.operations, wanted.via_root),)
    if found.all_tables:
        return _options(wanted, found, wanted.operations | found.operations)
    kept = {table.oid for table in chosen} & set(found.tables) - set(found.narrowed)
    dropped = tuple(table for table in tables if table.oid in found.tables and table.oid not in kept)
    added = tuple(table for table in chosen if table.oid not in kept and table.schema not in found.schemas)
    operations = wanted.operations | found.operations if found.schemas else wanted.operations
    steps = _options(wanted, found, operations)
    return (*((DropTables(dropped),) if dropped else ()), *((AddTables(added),) if added else ()), *steps)


def publish_tables(connection: Connection, name: str, tables: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Put tables into a publication that does not hold them; returns those that could not be, with the reason."""
    failed: dict[tuple[str, str], str] = {}
    published = find_publication(connection, name)
    if published is None:
        return dict.fromkeys(tables, f"publication {name!r} does not exist any more; create it again")
    listed = list_tables(connection)
    known = {(table.schema, table.name): table for table in listed}
    for key in tables:
        table = known.get(key)
        if table is None:
            failed[key] = "it does not exist; create it, or take it out of the pipeline"
        elif not published.holds(table):
            try:
                require_publishable(table)
                require_identity(table, listed)
                _apply(connection, name, AddTables((table,)))
            except (SourceError, psycopg.ProgrammingError) as exc:
                failed[key] = str(exc).strip().splitlines()[0]
    return failed


def _options(wanted: Publication, found: Found, operations: frozenset[Operation]) -> tuple[Step, ...]:
    if (operations, wanted.via_root) == (found.operations, found.via_root):
        return ()
    return (SetOptions(operations, wanted.via_root),)


def _apply(connection: Connection, name: str, step: Step) -> None:
    statement = _statement(name, step)
    try:
        execute_sync(connection, statement)
    except psycopg.errors.InsufficientPrivilege as exc:
        raise SourceError(
            f"role {connection.info.user} may not change publication {name!r} ({exc.diag.message_primary}); "
            f"have the owner of the tables run `{_one_line(statement, connection)}`"
        ) from exc
    except psycopg.errors.ReadOnlySqlTransaction as exc:
        raise SourceError(
            f"publication {name!r} cannot be changed on a standby; run `{_one_line(statement, connection)}` on its primary"
        ) from exc


def _statement(name: str, step: Step) -> Statement[None]:
    identifier = sql.Identifier(name)
    match step:
        case Create(tables, operations, via_root):
            return SQL["create_publication"].compose(
                name=identifier, tables=_members(tables), operations=_literal(operations), via_root=sql.Literal(via_root)
            )
        case AddTables(tables):
            return SQL["add_tables"].compose(name=identifier, tables=_members(tables))
        case DropTables(tables):
            return SQL["drop_tables"].compose(name=identifier, tables=_members(tables))
        case SetOptions(operations, via_root):
            return SQL["set_options"].compose(
                name=identifier, operations=_literal(operations), via_root=sql.Literal(via_root)
            )
        case _:
            assert_never(step)


def _members(tables: Iterable[Table]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("only {}").format(sql.Identifier(table.schema, table.name)) for table in tables)


def _literal(operations: frozenset[Operation]) -> sql.Literal:
    return sql.Literal(_listed(operations))


def _listed(operations: frozenset[Operation]) -> str:
    return ", ".join(operation for operation in Operation if operation in operations)


def _names(tables: Iterable[Table]) -> str:
    return ", ".join(map(str, tables))


def _one_line(statement: Statement[None], connection: Connection) -> str:
    lines = statement.query.as_string(connection).splitlines()
    return " ".join(line.strip() for line in lines if not line.startswith("--"))
