"""Schema `_creek` of the source database: the Avro schemas of all messages, and the SQL functions that change a producer.

A database that Creek itself has used has these objects already; they are taken over as they are.
"""

from collections.abc import Sequence
from typing import Final

import psycopg

from headwater.creek import statements
from headwater.creek.messages import SchemaMessage
from headwater.postgres.connect import Connection
from headwater.postgres.migrate import Component, migrate
from headwater.postgres.statements import fetch_sync

SCHEMA: Final = "_creek"


def prepare_creek(connection: Connection) -> None:
    """Make what is missing of Creek's objects."""
    migrate(connection, Component.of("headwater.creek", schema=SCHEMA))


def save_schemas(connection: Connection, schemas: Sequence[SchemaMessage]) -> frozenset[str]:
    """Keep schemas for those who will ask for them; returns the fingerprints of those that were not known before."""
    if not schemas:
        return frozenset()
    # One statement must not name a row twice.
    known = {schema.fingerprint: schema for schema in reversed(schemas)}
    statement = statements.save_schemas(
        list(known), [schema.schema for schema in known.values()], [schema.source for schema in known.values()]
    )
    return frozenset(fetch_sync(connection, statement))


def find_schema(connection: Connection, fingerprint: str) -> SchemaMessage | None:
    """The schema with a fingerprint, in base64 as on the wire; None if no message of this database was under it."""
    try:
        found = fetch_sync(connection, statements.find_schema(fingerprint))
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    for stored in found:
        return SchemaMessage(stored.fingerprint, stored.schema, stored.source, stored.created_at)
    return None
