"""The log to compare with, as section 002 of the reference systems describes it.

A writer is pinned to a partition; its transaction bumps the counter of the partition, whose row it holds until the commit,
and inserts its rows. A reader has a partition of a group to itself: it locks the pointer, moves it, also by nothing, reads
the rows, and commits. After an empty claim it sleeps for 0.1 to 2 ms; as coded, the remainder of a signed number makes about
half of these sleeps negative, which is none. All statements are prepared, and results are binary.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from psycopg.rows import class_row

from benchmarks.topics import statements
from benchmarks.topics.comparison_arms import Receive, Send
from benchmarks.topics.load import Load, Reads
from benchmarks.topics.statements import Row
from headwater.postgres.connect import AsyncConnection, Connection, connect
from headwater.postgres.statements import execute, execute_sync, fetch, fetch_sync

_LEAST_SECONDS: Final = 0.0001
_RANGE_SECONDS: Final = 0.0019
# What earlier runs may have left.
_MOST_PARTITIONS: Final = 30


@dataclass(frozen=True, slots=True)
class Reference:
    """The original; with `sleeps` each empty claim is followed by a sleep, as was meant."""

    sleeps: bool

    @property
    def name(self) -> str:
        return "fixed" if self.sleeps else "coded"

    def prepare(self, connection: Connection, load: Load) -> None:
        self.remove(connection)
        execute_sync(connection, statements.create_reference())
        for partition in range(1, load.partitions + 1):
            execute_sync(connection, statements.create_reference_partition(partition))
            execute_sync(connection, statements.insert_counter(partition))

    def remove(self, connection: Connection) -> None:
        for partition in range(1, _MOST_PARTITIONS + 1):
            execute_sync(connection, statements.drop_reference_partition(partition))

    def is_ready(self, connection: Connection, load: Load) -> bool:
        return fetch_sync(connection, statements.count_reference_readers()) == [load.groups * load.partitions]

    @asynccontextmanager
    async def senders(self, url: str, load: Load) -> AsyncIterator[Sequence[Send]]:
        async with AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(_sender(url, 1 + writer % load.partitions)) for writer in range(load.writers)
            ]

    @asynccontextmanager
    async def readers(self, url: str, load: Load, group: str, reads: Reads) -> AsyncIterator[Sequence[Receive]]:
        yield [partial(self._read, url, load, group, 1 + reader, reads) for reader in range(load.readers)]

    async def _read(self, url: str, load: Load, group: str, partition: int, reads: Reads) -> None:
        async with await connect(url) as connection:
            connection.prepare_threshold = 0
            await execute(connection, statements.insert_reference_group(group, partition))
            while True:
                if not await _poll(connection, group, partition, load.read_batch, reads):
                    reads.empty_polls += 1
                    await asyncio.sleep(self._rest())

    def _rest(self) -> float:
        part = random.random() if self.sleeps else random.uniform(-1, 1)
        return max(_LEAST_SECONDS + part * _RANGE_SECONDS, 0.0)


CODED: Final = Reference(sleeps=False)
FIXED: Final = Reference(sleeps=True)


@asynccontextmanager
async def _sender(url: str, partition: int) -> AsyncIterator[Send]:
    async with await connect(url) as connection:
        connection.prepare_threshold = 0

        async def send(payloads: Sequence[bytes]) -> None:
            async with connection.transaction():
                await execute(connection, statements.write_reference(partition, payloads))

        yield send


async def _poll(connection: AsyncConnection, group: str, partition: int, batch: int, reads: Reads) -> bool:
    """Whether there was something. The read is timed without its claim, as in the original."""
    async with connection.transaction():
        (window,) = await fetch(connection, statements.claim_reference(group, partition, batch))
        began = time.time()
        if window.delta:
            statement = statements.read_reference(partition, window.first, window.first + window.delta - 1)
            async with connection.cursor(binary=True, row_factory=class_row(Row)) as cursor:
                rows = await (await cursor.execute(statement.query, statement.parameters)).fetchall()
            reads.note([row.payload for row in rows], rows[0].created_at)
    if window.delta:
        reads.seconds.append(time.time() - began)
    return window.delta > 0
