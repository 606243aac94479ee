"""Waiting for something to become true, with a deadline, where the other side gives no signal."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")

# Seconds between two probes: most come true at once, and of those that do not many are queries on a new connection, which
# would keep a core busy.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.01, 0.2, 1.2


async def writes_nothing(connection: psycopg.Connection[Any], idle: Callable[[], Awaitable[object]]) -> bool:
    """Whether no WAL is written while something goes on, in one of two times: at times the server writes some for itself."""
    for _ in range(2):
        before = connection.execute("select pg_current_wal_insert_lsn()").fetchone()
        await idle()
        if connection.execute("select pg_current_wal_insert_lsn()").fetchone() == before:
            return True
    return False


def eventually(probe: Callable[..., T | None], *, seconds: float = 15) -> T:
    """The first true answer of `probe`; fails when none comes in time.

    It is called without arguments, and may have some with defaults: so a lambda binds the variable of a loop.
    """
    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still {answer!r} after {seconds} seconds"
        time.sleep(pause)
        pause = min(pause * _GROWTH, _LONGEST_PAUSE)
