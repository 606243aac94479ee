"""The demo's own schema and publication: made at the start, removed at the end, and never mistaken for somebody else's."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from headwater.cli.demo import statements
from headwater.cli.demo.statements import PUBLICATION, SCHEMA
from headwater.cli.session import session
from headwater.errors import SourceError
from headwater.model import Row
from headwater.postgres.catalog import Table, list_columns, list_tables, select_tables
from headwater.postgres.connect import Connection, describe
from headwater.postgres.replication.publication import Publication, reconcile
from headwater.postgres.statements import execute_sync, fetch_sync


@contextmanager
def staged(connection: Connection, url: str) -> Iterator[list[Table]]:
    """Tables to write to, published, for the length of the block; the connection keeps other demos away meanwhile."""
    _claim(connection, describe(url))
    try:
        _create(connection, describe(url))
        yield select_tables(list_tables(connection), [f"{SCHEMA}.*"])
    finally:
        # A connection of its own: a signal may have left the other one in the middle of a statement.
        with session(url) as cleaner:
            _remove(cleaner)


def read_table(connection: Connection, table: Table) -> list[Row]:
    """What a table holds, as psycopg reads it; JSON stays text, as it does in a change."""
    columns = [column.name for column in list_columns(connection, [table.oid])]
    with connection.cursor(row_factory=dict_row) as cursor:
        for name in ("json", "jsonb"):
            cursor.adapters.register_loader(name, TextLoader)
        cursor.execute(statements.set_forms().query)
        return list(cursor.execute(statements.read_rows(table, columns).query))


def _claim(connection: Connection, server: str) -> None:
    """Make sure that our names are free; what an earlier demo that was killed has left behind is removed."""
    if fetch_sync(connection, statements.lock_demo()) != [True]:
        raise SourceError(f"another demo runs in {server}; wait until it ends, or run without --url for a private server")
    existing = fetch_sync(connection, statements.find_existing())
    for found in existing:
        if not found.is_ours:
            raise SourceError(
                f"{found.kind} {SCHEMA} in {server} was not made by this demo, which needs the name for its own; "
                f"rename it, name another database, or run without --url for a private server"
            )
    if existing:
        _remove(connection)


def _create(connection: Connection, server: str) -> None:
    """All at once, so that an interrupted demo leaves nothing that does not say whose it is."""
    try:
        with connection.transaction():
            execute_sync(connection, statements.create_schema())
            reconcile(connection, Publication(name=PUBLICATION, tables=(f"{SCHEMA}.*",)))
            execute_sync(connection, statements.mark_publication())
    except psycopg.errors.InsufficientPrivilege as exc:
        user, database = connection.info.user, connection.info.dbname
        raise SourceError(
            f"role {user} may not create a schema in {server}; run `grant create on database {database} to {user}`, "
            "or run without --url for a private server"
        ) from exc


def _remove(connection: Connection) -> None:
    with connection.transaction():
        execute_sync(connection, statements.drop_publication())
        execute_sync(connection, statements.drop_schema())
