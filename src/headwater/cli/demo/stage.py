"""All that the demo makes in databases: made at the start, removed at the end, and never mistaken for somebody else's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from headwater.capture.provision import provision
from headwater.cli.demo import statements
from headwater.cli.demo.statements import PUBLICATION, SCHEMA, SLOT, TARGET
from headwater.cli.session import session
from headwater.errors import SourceError
from headwater.model import Row
from headwater.postgres.catalog import Table, list_columns, list_tables, select_tables
from headwater.postgres.connect import Connection, complete, connect_sync, describe
from headwater.postgres.replication.publication import Publication, reconcile
from headwater.postgres.statements import execute_sync, fetch_sync


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the demo plays: tables to write to, published and with a slot, and an open connection to the target."""

    tables: Sequence[Table]
    target_url: str
    target: Connection


@contextmanager
def staged(connection: Connection, url: str) -> Iterator[Stage]:
    """Source and target for the length of the block; the connection, to the source, keeps other demos away meanwhile."""
    _claim(connection, describe(url))
    target_url = complete(url, dbname=TARGET)
    try:
        _create_source(connection, describe(url))
        _create_target(connection, describe(url))
        with connect_sync(target_url) as target:
            execute_sync(target, statements.create_schema())
            execute_sync(target, statements.create_tables())
            # Here and not in the pipeline: this waits for every transaction of the server, and a signal can end it here.
            provision(url, SLOT, PUBLICATION, (f"{SCHEMA}.*",))
            yield Stage(select_tables(list_tables(connection), [f"{SCHEMA}.*"]), target_url, target)
    finally:
        # A connection of its own: a signal may have left the other one in the middle of a statement.
        with session(url) as cleaner:
            _remove(cleaner)


def read_table(connection: Connection, table: Table) -> list[Row]:
    """What a table of that name holds, as psycopg reads it; JSON stays text."""
    found = select_tables(list_tables(connection), [str(table)])
    columns = [column.name for column in list_columns(connection, [one.oid for one in found])]
    with connection.cursor(row_factory=dict_row) as cursor:
        for name in ("json", "jsonb"):
            cursor.adapters.register_loader(name, TextLoader)
        cursor.execute(statements.set_forms().query)
        return list(cursor.execute(statements.read_rows(table, columns).query))


def _claim(connection: Connection, server: str) -> None:
    """Make sure that our names are free; what an earlier demo that was killed has left behind is removed."""
    if fetch_sync(connection, statements.lock_demo()) != [True]:
        raise _busy(server)
    existing = fetch_sync(connection, statements.find_existing())
    for found in existing:
        if not found.is_ours:
            raise SourceError(
                f"{found.name} in {server} was not made by this demo, which needs the name for its own; "
                f"remove or rename it, name another database, or run without --url for a private server"
            )
        if found.is_used:
            raise _busy(server)
    if existing:
        _remove(connection)


def _busy(server: str) -> SourceError:
    return SourceError(f"another demo runs in {server}; wait until it ends, or run without --url for a private server")


def _create_source(connection: Connection, server: str) -> None:
    """All at once, so that an interrupted demo leaves nothing that does not say whose it is."""
    try:
        with connection.transaction():
            execute_sync(connection, statements.create_schema())
            execute_sync(connection, statements.create_tables())
            execute_sync(connection, statements.create_creek())
            reconcile(connection, Publication(name=PUBLICATION, tables=(f"{SCHEMA}.*",)))
            execute_sync(connection, statements.mark_publication())
    except psycopg.errors.InsufficientPrivilege as exc:
        user, database = connection.info.user, connection.info.dbname
        raise SourceError(
            f"role {user} may not create a schema in {server}; run `grant create on database {database} to {user}`, "
            "or run without --url for a private server"
        ) from exc


def _create_target(connection: Connection, server: str) -> None:
    try:
        execute_sync(connection, statements.create_target())
        execute_sync(connection, statements.mark_target())
    except psycopg.errors.InsufficientPrivilege as exc:
        user = connection.info.user
        raise SourceError(
            f"role {user} may not create database {TARGET}, which the changes of {server} go to; run "
            f"`alter role {user} createdb`, or run without --url for a private server"
        ) from exc


def _remove(connection: Connection) -> None:
    """The slot first: while it is there, the schema says whose it is."""
    fetch_sync(connection, statements.end_reader())
    fetch_sync(connection, statements.drop_slot())
    execute_sync(connection, statements.drop_target())
    with connection.transaction():
        execute_sync(connection, statements.drop_publication())
        execute_sync(connection, statements.drop_creek())
        execute_sync(connection, statements.drop_schema())
