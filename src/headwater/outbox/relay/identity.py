"""Which database a connection of the application leads to: a relay sends and marks the rows of its own one only."""

from collections.abc import MutableMapping
from typing import Any, TypeAlias

import psycopg

from headwater.outbox import statements
from headwater.postgres.statements import fetch, fetch_sync

# By connection, of those that were asked.
Databases: TypeAlias = MutableMapping[object, str]


async def database_of(connection: psycopg.AsyncConnection[Any], known: Databases) -> str:
    """Asked of a connection once, in a transaction of its own: in the caller's, some settings would come too late."""
    if (found := known.get(connection)) is None:
        async with connection.transaction():
            (found,) = await fetch(connection, statements.identify_database())
        known[connection] = found
    return found


def database_of_sync(connection: psycopg.Connection[Any], known: Databases) -> str:
    """`database_of` for a connection that is not async."""
    if (found := known.get(connection)) is None:
        with connection.transaction():
            (found,) = fetch_sync(connection, statements.identify_database())
        known[connection] = found
    return found
