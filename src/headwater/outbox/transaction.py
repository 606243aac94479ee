"""Whether a connection of the application is one of psycopg's and in a transaction: an outbox and an inbox rest on that."""

from typing import Any, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from headwater.errors import OutboxError
from headwater.postgres.caller import async_fault, sync_fault

AnyConnection: TypeAlias = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


def require_transaction(connection: AnyConnection, what: str) -> None:
    """Raise OutboxError if a statement on the connection would be committed by itself.

    Without autocommit psycopg opens a transaction by itself. In pipeline mode the state is not known while statements are
    under way; then they are committed together in any case.
    """
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise OutboxError(
            f"{what} has to be part of a transaction, and the connection has none open; put it and what it is about into "
            "`with connection.transaction():`, which is `async with` for an async connection"
        )


def require_async(connection: object, function: str) -> None:
    """Raise OutboxError if a connection is none that an async function can use."""
    if fault := async_fault(connection, function):
        raise OutboxError(fault)


def require_sync(connection: object, function: str) -> None:
    """Raise OutboxError if a connection is none that the sync partner of a function can use."""
    if fault := sync_fault(connection, function):
        raise OutboxError(fault)
