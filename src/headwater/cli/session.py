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
            raise SourceError(f"PostgreSQL at {describe(url)} refused: {reason}; {_remedy(exc)}") from exc


def _remedy(error: psycopg.Error) -> str:
    match error:
        case psycopg.errors.InsufficientPrivilege():
            return "grant this role the right, or connect as one that has it"
        case psycopg.errors.UndefinedObject():
            return "create it first, or correct its name"
        case psycopg.errors.ReadOnlySqlTransaction():
            return "connect to the primary, in a session that may write"
        case psycopg.errors.QueryCanceled() | psycopg.errors.LockNotAvailable():
            return "try again when the server is less busy, or raise its statement_timeout and lock_timeout"
        case _:
            return "the server's log has the statement; `headwater check` says what capture needs"
