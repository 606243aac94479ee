"""Transactions that see what was committed while they waited, whatever the default of the role or the database is.

Those that lock out others have limits: for waiting, and for a client that stalls.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from headwater.postgres.statements import Statement, execute, execute_sync, fetch, load

SQL: Final = load("headwater.postgres", "sql/latest.sql")
# Long enough for a client on a busy machine, and no longer than others can wait for one that has stalled.
IDLE_TIMEOUT: Final = timedelta(seconds=5)


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


def bound_waiting(lock: timedelta, statement: timedelta | None = None) -> Statement[str]:
    """Limit a transaction that locks out others: its waits for locks, its idle times, and its statements, with 0 not at all.

    Without a limit for statements, the role's own holds.
    """
    statement_ms = None if statement is None else _milliseconds(statement)
    idle_ms = _milliseconds(IDLE_TIMEOUT)
    return SQL["bound_waiting"].bind(str, lock_ms=_milliseconds(lock), statement_ms=statement_ms, idle_ms=idle_ms)


def _milliseconds(limit: timedelta) -> str:
    return str(round(limit.total_seconds() * 1000))
