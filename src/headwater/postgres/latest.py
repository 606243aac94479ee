"""Transactions that see what was committed while they waited, whatever the default of the role or the database is."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from headwater.postgres.statements import execute, execute_sync
from headwater.topics import statements


@asynccontextmanager
async def latest(connection: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    """A transaction, or a part of the caller's, which is as the caller has begun it."""
    is_ours = connection.info.transaction_status == TransactionStatus.IDLE
    async with connection.transaction():
        if is_ours:
            await execute(connection, statements.see_latest())
        yield


@contextmanager
def latest_sync(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """`latest` for a connection that is not async."""
    is_ours = connection.info.transaction_status == TransactionStatus.IDLE
    with connection.transaction():
        if is_ours:
            execute_sync(connection, statements.see_latest())
        yield
