"""The messaging to compare with, as section 003 of the reference systems describes it, in its four published steps.

Messages are inserted by 500 and their ids notified in the same transaction, one by one or by 350; the consumer hears of
them, claims them, sends them and marks each as sent. Chunks are processed strictly one after the other. It is on the same
driver as ours, with statements that are prepared from the first time on and a pool that costs next to nothing, so that it is
as quick as its algorithm allows. Its polls, every 30 seconds for what is a minute old, would find nothing in runs as short
as these and are left out, as is tracing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from psycopg import AsyncRawCursor
from psycopg.rows import scalar_row

from benchmarks.queue import statements
from benchmarks.queue.comparison_arms import connections
from benchmarks.queue.processes import Board
from benchmarks.queue.span_counting import Spans
from benchmarks.queue.statements import Email
from headwater.postgres.connect import AsyncConnection
from headwater.postgres.statements import execute, fetch

# Of the original: rows of an insert, ids of a notification since the second step, and the queries that warm a pool.
INSERT_ROWS: Final = 500
NOTIFY_IDS: Final = 350
WARM_QUERIES: Final = 50
PRODUCER_POOL: Final = 10

SUBJECT: Final = "Hello there"
TO: Final = ["foo@example.com"]
CC: Final = ["bar@example.com"]
BCC: Final = ["bar@example.com"]
BODY: Final = "General Kenobi!"


@dataclass(frozen=True, slots=True)
class Step:
    """One of the published steps: how ids are notified, how large the consumer's pool is, and what is done at once."""

    name: str
    notify_ids: int
    pool: int
    is_parallel: bool = True
    claims_all: bool = False


STEPS: Final = (
    Step("step1", notify_ids=1, pool=10, is_parallel=False),
    Step("step2", notify_ids=NOTIFY_IDS, pool=10),
    Step("step3", notify_ids=NOTIFY_IDS, pool=32),
    Step("step4", notify_ids=NOTIFY_IDS, pool=32, claims_all=True),
)


@dataclass(frozen=True, slots=True)
class Produced:
    """How long the call took, when it was about to commit, and the spans if it was traced."""

    seconds: float
    committed_at: float
    spans: Spans = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Consumed:
    """From the first notification to the last durable mark, and what all chunks took together, as the original counts."""

    began: float
    ended: float
    chunk_seconds: float


class Pool:
    """Connections that are lent to one at a time; whoever finds none waits."""

    def __init__(self, opened: Sequence[AsyncConnection]) -> None:
        self._free: asyncio.LifoQueue[AsyncConnection] = asyncio.LifoQueue()
        for connection in opened:
            connection.prepare_threshold = 0
            self._free.put_nowait(connection)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[AsyncConnection]:
        connection = await self._free.get()
        try:
            yield connection
        finally:
            self._free.put_nowait(connection)

    async def warm(self) -> None:
        async def ask() -> None:
            async with self.taken() as connection:
                await fetch(connection, statements.trivial())

        await asyncio.gather(*(ask() for _ in range(WARM_QUERIES)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The producer: all messages in one call, which is one transaction."""

    step: Step
    url: str
    messages: int

    def run(self, board: Board) -> Produced:
        return asyncio.run(self._run())

    async def _run(self) -> Produced:
        row = [SUBJECT, TO, CC, BCC, BODY, "scheduled"]
        async with connections(self.url, PRODUCER_POOL) as opened:
            pool = Pool(opened)
            await pool.warm()
            began = time.perf_counter()
            async with pool.taken() as connection, connection.transaction():
                ids = await self._insert(connection, row)
                for payload in payloads(ids, self.step.notify_ids):
                    await execute(connection, statements.notify_emails(payload))
                committed_at = time.time()
            return Produced(time.perf_counter() - began, committed_at)

    async def _insert(self, connection: AsyncConnection, row: Sequence[object]) -> list[int]:
        ids: list[int] = []
        now = datetime.now(UTC)
        for rows in batches(range(self.messages), INSERT_ROWS):
            parameters = [value for _ in rows for value in (*row, now)]
            cursor = AsyncRawCursor(connection, row_factory=scalar_row)
            ids += await (await cursor.execute(statements.insert_emails(len(rows)).query, parameters)).fetchall()
        return ids


@dataclass(frozen=True, slots=True)
class Consume:
    """The consumer: until so many messages are marked."""

    step: Step
    url: str
    messages: int

    def run(self, board: Board) -> Consumed:
        return asyncio.run(self._run(board))

    async def _run(self, board: Board) -> Consumed:
        async with connections(self.url, 1) as (listener,), connections(self.url, self.step.pool) as opened:
            pool = Pool(opened)
            await pool.warm()
            await execute(listener, statements.listen_emails())
            board.is_ready.value = 1
            consumer, began, chunk_seconds = Consumer(pool, self.step), 0.0, 0.0
            async for notification in listener.notifies():
                began = began or time.time()
                since = time.perf_counter()
                await consumer.process([int(id) for id in notification.payload.split(",")])
                chunk_seconds += time.perf_counter() - since
                if consumer.marked >= self.messages:
                    break
            return Consumed(began, time.time(), chunk_seconds)


class Consumer:
    def __init__(self, pool: Pool, step: Step) -> None:
        self._pool, self._step = pool, step
        self.marked = 0

    async def process(self, ids: Sequence[int]) -> None:
        """All of a notification."""
        if self._step.claims_all:
            async with self._pool.taken() as connection:
                claimed = await fetch(connection, statements.claim_emails(ids, datetime.now(UTC)))
            await asyncio.gather(*(self._finish(message) for message in claimed))
        elif self._step.is_parallel:
            await asyncio.gather(*(self._process_one(id) for id in ids))
        else:
            for id in ids:
                await self._process_one(id)

    async def _process_one(self, id: int) -> None:
        async with self._pool.taken() as connection:
            claimed = await fetch(connection, statements.claim_email(id, datetime.now(UTC)))
        for message in claimed:
            await self._finish(message)

    async def _finish(self, message: Email) -> None:
        await send(message)
        async with self._pool.taken() as connection:
            rows = await execute(connection, statements.mark_email(message.id, datetime.now(UTC)))
        self.marked += rows


async def send(message: object) -> None:
    """The stub of the original, which does nothing."""


def payloads(ids: Sequence[int], size: int) -> Iterator[str]:
    """What is notified."""
    return (",".join(map(str, some)) for some in batches(ids, size))


def batches(values: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (values[first : first + size] for first in range(0, len(values), size))
