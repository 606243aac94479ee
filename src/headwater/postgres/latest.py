"""Transactions that see what was committed while they waited, whatever the default of the role or the database is."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from headwater.postgres.statements import execute, execute_sync, fetch, load

SQL: Final = load("headwater.postgres", "sql/latest.sql")


@asynccontextmanager
async def latest(connection: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    """A transaction, or a part of the caller's, which is as the caller has begun it."""
    is_ours = connection.info.transaction_status == TransactionStatus.IDLE
    async with connection.transaction():
        if is_ours:
            await execute(connection, SQL["see_latest"].compose())
        yield


@contextmanager
def latest_sync(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """`latest` for a connection that is not async."""
    is_ours = connection.info.transaction_status == TransactionStatus.IDLE
    with connection.transaction():
        if is_ours:
            execute_sync(connection, SQL["see_latest"].compose())
        yield


async def is_latest(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether single statements are such transactions by themselves."""
    (answer,) = await fetch(connection, SQL["is_latest"].bind(bool))
    return answer
