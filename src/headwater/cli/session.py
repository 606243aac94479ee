"""A connection for the length of a command, whose failures become ours."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from headwater.errors import SourceError
from headwater.postgres.connect import Connection, connect_sync, describe, translate


@contextmanager
def session(url: str) -> Iterator[Connection]:
    """Connect, and close at the end; what psycopg raises in between says which server refused what."""
    with connect_sync(url) as connection:
        try:
            yield connection
        except psycopg.Error as exc:
            if connection.broken:
                raise translate(exc, url) from exc
            reason = exc.diag.message_primary or type(exc).__name__
            raise SourceError(f"PostgreSQL at {describe(url)} refused: {reason}") from exc
