"""Headwater's own tables, brought to the version that the code wants by numbered migrations that only go forward.

A component (`queue`, `topics`, ...) keeps its migrations as `sql/migrations/0001_what.sql`. Each is applied in a transaction
of its own, together with its record, under a lock that lasts as long as the transaction: any number of processes may start
at once, also through a pooler. What needs to run outside of a transaction (`create index concurrently`) cannot be a
migration.
"""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any, Final, cast

import psycopg
from psycopg import sql

from headwater.errors import SchemaError, SettingsError
from headwater.postgres.connect import Connection
from headwater.postgres.statements import DEFAULT_SCHEMA, Query, execute_sync, fetch_sync, load, with_schema

_log = logging.getLogger(__name__)

_FILE_NAME = re.compile(r"(?P<number>\d{4})_(?P<name>\w+)\.sql")
_SCHEMA_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Migration:
    """A step from one version of a component's tables to the next."""

    number: int
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.number:04}_{self.name}"

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Applied:
    """The record of a migration that a database has seen."""

    number: int
    name: str
    checksum: str
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class Component:
    """A part of Headwater with tables of its own, and the schema that they live in."""

    name: str
    migrations: tuple[Migration, ...]
    schema: str = DEFAULT_SCHEMA

    def __post_init__(self) -> None:
        if not _SCHEMA_NAME.fullmatch(self.schema):
            raise SettingsError(f"{self.schema!r} cannot be Headwater's schema; use letters, digits and underscores")

    @classmethod
    def of(cls, package: str, *, schema: str = DEFAULT_SCHEMA) -> "Component":
        """The component that a package is, named by the package's last part."""
        folder = files(package).joinpath("sql", "migrations")
        texts = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.name.endswith(".sql")}
        return cls(package.rpartition(".")[2], read_migrations(texts), schema)

    @property
    def queries(self) -> Mapping[str, Query]:
        return load("headwater.postgres", "sql/migrate.sql", schema=self.schema)


@dataclass(frozen=True, slots=True)
class _Found:
    has_schema: bool
    has_table: bool


def read_migrations(texts: Mapping[str, str]) -> tuple[Migration, ...]:
    """The migrations in some files by name; the numbers must run from 1 without a gap."""
    migrations: list[Migration] = []
    for file_name in sorted(texts):
        match = _FILE_NAME.fullmatch(file_name)
        if match is None or int(match["number"]) != len(migrations) + 1:
            raise SchemaError(f"migration {file_name} is out of line; the next one is {len(migrations) + 1:04}_<what>.sql")
        migrations.append(Migration(int(match["number"]), match["name"], texts[file_name]))
    return tuple(migrations)


def plan(component: Component, applied: Sequence[Applied]) -> tuple[Migration, ...]:
    """The migrations still to apply; raises SchemaError if the database went another way than the code."""
    known = component.migrations
    if len(applied) > len(known):
        raise SchemaError(
            f"the tables of {component.name} in schema {component.schema} are of version {len(applied)}, and this release "
            f"knows only {len(known)}; upgrade Headwater, or point it at another schema"
        )
    for record, migration in zip(applied, known, strict=False):
        if (record.number, record.checksum) != (migration.number, migration.checksum):
            raise SchemaError(
                f"migration {migration} of {component.name} differs from what was applied on {record.applied_at:%Y-%m-%d}; "
                f"restore the file as released, and put the change into a new migration"
            )
    return known[len(applied) :]


def pending_migrations(connection: Connection, component: Component) -> tuple[Migration, ...]:
    """What `migrate` would apply, without writing anything."""
    return plan(component, _applied(connection, component))


def require_current(connection: Connection, component: Component) -> None:
    """Raise SchemaError unless the database has all migrations of the component."""
    for migration in pending_migrations(connection, component)[:1]:
        raise SchemaError(f"schema {component.schema} lacks migration {migration} of {component.name}; apply it first")


def migrate(connection: Connection, component: Component) -> tuple[Migration, ...]:
    """Apply what is pending and return what this call applied; others may have applied the rest meanwhile."""
    done: list[Migration] = []
    while pending_migrations(connection, component):
        done.extend(_apply_next(connection, component))
    return tuple(done)


def _apply_next(connection: Connection, component: Component) -> tuple[Migration, ...]:
    """Apply the first pending migration, unless another process was quicker."""
    queries = component.queries
    with connection.transaction():
        fetch_sync(connection, queries["lock_migrations"].bind(str, schema=component.schema))
        _prepare(connection, component)
        pending = pending_migrations(connection, component)[:1]
        for migration in pending:
            _run(connection, component, migration)
            facts = {"number": migration.number, "name": migration.name, "checksum": migration.checksum}
            execute_sync(connection, queries["record_migration"].bind(object, component=component.name, **facts))
            _log.debug("migration applied", extra={"component": component.name, "migration": str(migration)})
        return pending


def _run(connection: Connection, component: Component, migration: Migration) -> None:
    # The text comes from a packaged file, never from a user, which is what LiteralString stands for.
    text = sql.SQL(cast("Any", with_schema(migration.text, component.schema)))
    try:
        connection.execute(text)
    except psycopg.Error as exc:
        if connection.broken:
            raise
        reason = exc.diag.message_primary or type(exc).__name__
        raise SchemaError(
            f"migration {migration} of {component.name} failed and left nothing behind: {reason}; remove from schema "
            f"{component.schema} what is in its way, or grant role {connection.info.user} what it lacks, and start again"
        ) from exc


def _prepare(connection: Connection, component: Component) -> None:
    """Make the schema and the table of records, if they are missing."""
    found, queries = _find(connection, component), component.queries
    try:
        if not found.has_schema:
            execute_sync(connection, queries["create_schema"].bind(object))
        if not found.has_table:
            execute_sync(connection, queries["create_migration_table"].bind(object))
    except psycopg.errors.InsufficientPrivilege as exc:
        user, schema = connection.info.user, component.schema
        raise SchemaError(
            f"role {user} may not create schema {schema} and tables in it in database {connection.info.dbname}; have the "
            f'database\'s owner run `create schema "{schema}" authorization "{user}"`'
        ) from exc


def _applied(connection: Connection, component: Component) -> list[Applied]:
    if not _find(connection, component).has_table:
        return []
    return fetch_sync(connection, component.queries["list_applied"].bind(Applied, component=component.name))


def _find(connection: Connection, component: Component) -> _Found:
    return fetch_sync(connection, component.queries["find_migration_table"].bind(_Found, schema=component.schema))[0]
