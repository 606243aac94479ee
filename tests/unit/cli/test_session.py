"""What a server refuses in the middle of a command, and what to do about it."""

from contextlib import nullcontext
from types import SimpleNamespace

import psycopg
import pytest
from psycopg import errors

from headwater.cli import session as module
from headwater.errors import ConnectionLost, SourceError

URL = "postgresql://me:hunter2@db/shop"


@pytest.fixture
def connection(monkeypatch):
    fake = SimpleNamespace(broken=False)
    monkeypatch.setattr(module, "connect_sync", lambda _url: nullcontext(fake))
    return fake


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (errors.InsufficientPrivilege(), "grant this role the right"),
        (errors.ReadOnlySqlTransaction(), "connect to the primary"),
        (errors.QueryCanceled(), "raise its statement_timeout"),
        (errors.LockNotAvailable(), "raise its statement_timeout and lock_timeout"),
        (errors.InternalError_(), "the server's log has the statement"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_refusal_names_the_server_and_a_remedy(connection, error, remedy):
    with pytest.raises(SourceError, match=f"PostgreSQL at me@db:5432/shop refused: .*; .*{remedy}"), module.session(URL):
        raise error


def test_a_connection_that_broke_is_lost(connection):
    connection.broken = True

    with pytest.raises(ConnectionLost, match="no connection to PostgreSQL at me@db:5432/shop"), module.session(URL):
        raise psycopg.OperationalError("gone")
