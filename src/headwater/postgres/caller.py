"""Whether a connection that an application hands over is of the kind that a function can use. Pure."""

import psycopg


def async_fault(connection: object, function: str) -> str | None:
    """What is wrong with a connection for an async function, or None."""
    return _fault(connection, psycopg.AsyncConnection, function, f"{function}_sync")


def sync_fault(connection: object, function: str) -> str | None:
    """What is wrong with a connection for the sync partner of a function, or None."""
    return _fault(connection, psycopg.Connection, f"{function}_sync", function)


def _fault(connection: object, kind: type, function: str, other: str) -> str | None:
    if isinstance(connection, kind):
        return None
    given = type(connection)
    remedy = f"use {other} with it" if isinstance(connection, psycopg.BaseConnection) else "give it psycopg's own connection"
    return f"{function} needs a psycopg.{kind.__name__}, and got a {given.__module__}.{given.__qualname__}; {remedy}"
