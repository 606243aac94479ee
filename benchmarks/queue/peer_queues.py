"""The peers from PyPI, each by its own API. Which of its settings is the fastest here, a trial tells."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeAlias

import asyncpg  # type: ignore[import-untyped] # ships no types
import procrastinate
from pgmq.async_queue import PGMQueue
from pgmq.install import install_pgmq_from_sql
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.core.qm import QueueManager
from pgqueuer.domain.models import Job
from pgqueuer.queries import Queries

from benchmarks.queue import statements
from benchmarks.queue.comparison_arms import KIND, QUEUE, Note, SendMany, SendOne, connections, until_over
from headwater.postgres.connect import AsyncConnection, Connection
from headwater.postgres.statements import Statement, execute_sync, fetch


@dataclass(frozen=True, slots=True)
class Pgqueuer:
    """On asyncpg, under uvloop as its own command runs it, and with the vacuums that it recommends."""

    batch: int
    has_pool: bool
    has_uvloop: ClassVar[bool] = True
    name: ClassVar[str] = "pgqueuer"
    keeps: ClassVar[str] = "rows of each job in a log"

    @property
    def settings(self) -> str:
        return f"batches of {self.batch}, {'a pool' if self.has_pool else 'one connection'} of asyncpg, uvloop"

    def install(self, url: str, connection: Connection) -> None:
        asyncio.run(self._install(url))

    async def _install(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    def empty(self) -> Statement[None]:
        return statements.empty_pgqueuer()

    def count_left(self) -> Statement[int]:
        return statements.count_pgqueuer()

    @asynccontextmanager
    async def batches(self, url: str) -> AsyncIterator[SendMany]:
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
            queries = Queries(AsyncpgPoolDriver(pool))

            async def send(numbers: range) -> None:
                count = len(numbers)
                await queries.enqueue([KIND] * count, [_bytes_of(number) for number in numbers], [0] * count)

            yield send

    @asynccontextmanager
    async def singles(self, url: str, callers: int) -> AsyncIterator[SendOne]:
        async with asyncpg.create_pool(url, min_size=callers, max_size=callers) as pool:
            queries = Queries(AsyncpgPoolDriver(pool))

            async def send(number: int) -> None:
                await queries.enqueue(KIND, _bytes_of(number))

            yield send

    async def work(self, url: str, note: Note, over: asyncio.Event) -> None:
        async with AsyncExitStack() as stack:
            driver: AsyncpgDriver | AsyncpgPoolDriver
            if self.has_pool:
                # Its own default, of which one connection listens.
                driver = AsyncpgPoolDriver(await stack.enter_async_context(asyncpg.create_pool(url, min_size=1, max_size=5)))
            else:
                connection = await asyncpg.connect(url)
                stack.push_async_callback(connection.close)
                driver = AsyncpgDriver(connection)
            manager = QueueManager(Queries(driver))

            @manager.entrypoint(KIND)
            async def nothing(job: Job) -> None:
                note()

            running = asyncio.create_task(manager.run(batch_size=self.batch, dequeue_timeout=timedelta(seconds=1)))
            await until_over(over, running)
            manager.shutdown.set()
            await running


@dataclass(frozen=True, slots=True)
class Procrastinate:
    """On psycopg with a pool, which is its own connector."""

    concurrency: int
    connections: int
    has_uvloop: ClassVar[bool] = False
    name: ClassVar[str] = "procrastinate"
    keeps: ClassVar[str] = "the row of each job, and of each of its events"

    @property
    def settings(self) -> str:
        return f"{self.concurrency} at a time, a pool of {self.connections}, asyncio"

    def install(self, url: str, connection: Connection) -> None:
        app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
        with app.open():
            app.schema_manager.apply_schema()

    def empty(self) -> Statement[None]:
        return statements.empty_procrastinate()

    def count_left(self) -> Statement[int]:
        return statements.count_procrastinate()

    @asynccontextmanager
    async def batches(self, url: str) -> AsyncIterator[SendMany]:
        app, nothing = _app(url, 1, lambda: None)
        async with app.open_async():

            async def send(numbers: range) -> None:
                await nothing.batch_defer_async(*({"id": number} for number in numbers))

            yield send

    @asynccontextmanager
    async def singles(self, url: str, callers: int) -> AsyncIterator[SendOne]:
        app, nothing = _app(url, callers, lambda: None)
        async with app.open_async():

            async def send(number: int) -> None:
                await nothing.defer_async(id=number)

            yield send

    async def work(self, url: str, note: Note, over: asyncio.Event) -> None:
        app, _ = _app(url, self.connections, note)
        async with app.open_async():
            running = asyncio.create_task(app.run_worker_async(concurrency=self.concurrency, install_signal_handlers=False))
            await until_over(over, running)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


def _app(url: str, size: int, note: Note) -> tuple[procrastinate.App, Any]:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=size, max_size=size))

    @app.task(name=KIND, queue=QUEUE)
    async def nothing(id: int) -> None:
        note()

    return app, nothing


Finish: TypeAlias = Literal["delete", "archive"]
# The ids of messages that are to be handled, and the end of these messages.
Read: TypeAlias = Callable[[], Awaitable[Sequence[int]]]
End: TypeAlias = Callable[[Sequence[int]], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Pgmq:
    """Several readers at a time, each of which reads a batch, handles it and finishes it, so that they overlap.

    By its client for asyncpg, or by its functions from psycopg. It has no worker: here messages of a batch are handled one
    after the other, and all or none of them are finished; or `has_tasks`, and they are handled at the same time, as the
    workers of the others do, and each can fail for itself.
    """

    batch: int
    readers: int
    has_client: bool
    finish: Finish
    has_tasks: bool = False
    has_uvloop: bool = True

    @property
    def name(self) -> str:
        return f"pgmq_{self.finish}_tasks" if self.has_tasks else f"pgmq_{self.finish}"

    @property
    def keeps(self) -> str:
        return "nothing" if self.finish == "delete" else "a row of each message in its archive"

    @property
    def settings(self) -> str:
        how = "its client on asyncpg" if self.has_client else "its functions by psycopg"
        loop = "uvloop" if self.has_uvloop else "asyncio"
        return f"batches of {self.batch}, {self.readers} readers, {how}, {loop}"

    def install(self, url: str, connection: Connection) -> None:
        install_pgmq_from_sql(dsn=url)
        execute_sync(connection, statements.create_pgmq())

    def empty(self) -> Statement[None]:
        return statements.empty_pgmq()

    def count_left(self) -> Statement[int]:
        return statements.count_pgmq()

    @asynccontextmanager
    async def batches(self, url: str) -> AsyncIterator[SendMany]:
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
            client = PGMQueue(pool=pool, init_extension=False)

            async def send(numbers: range) -> None:
                await client.send_batch(QUEUE, [{"id": number} for number in numbers], conn=connection)

            yield send

    @asynccontextmanager
    async def singles(self, url: str, callers: int) -> AsyncIterator[SendOne]:
        async with asyncpg.create_pool(url, min_size=callers, max_size=callers) as pool:
            client = PGMQueue(pool=pool, init_extension=False)

            async def send(number: int) -> None:
                # With a connection it opens no transaction of its own, which saves two round trips.
                async with pool.acquire() as connection:
                    await client.send(QUEUE, {"id": number}, conn=connection)

            yield send

    async def work(self, url: str, note: Note, over: asyncio.Event) -> None:
        async def nothing() -> None:
            note()

        async def handle(ids: Sequence[int]) -> Sequence[int]:
            if not self.has_tasks:
                for _ in ids:
                    await nothing()
                return ids
            outcomes = await asyncio.gather(*(nothing() for _ in ids), return_exceptions=True)
            return [id for id, outcome in zip(ids, outcomes, strict=True) if outcome is None]

        async def consume(read: Read, end: End) -> None:
            while not over.is_set():
                if ids := await read():
                    await end(await handle(ids))
                else:
                    await asyncio.sleep(0.01)

        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for read, end in await self._readers(url, stack):
                group.create_task(consume(read, end))

    async def _readers(self, url: str, stack: AsyncExitStack) -> list[tuple[Read, End]]:
        if not self.has_client:
            opened = await stack.enter_async_context(connections(url, self.readers))
            return [self._by_functions(connection) for connection in opened]
        pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=self.readers, max_size=self.readers))
        client = PGMQueue(pool=pool, init_extension=False)
        return [self._by_client(client, await stack.enter_async_context(pool.acquire())) for _ in range(self.readers)]

    def _by_client(self, client: PGMQueue, connection: Any) -> tuple[Read, End]:
        async def read() -> Sequence[int]:
            found = await client.read_batch(QUEUE, batch_size=self.batch, conn=connection)
            return [message.msg_id for message in found]

        async def end(ids: Sequence[int]) -> object:
            finish = client.delete_batch if self.finish == "delete" else client.archive_batch
            return await finish(QUEUE, list(ids), conn=connection)

        return read, end

    def _by_functions(self, connection: AsyncConnection) -> tuple[Read, End]:
        async def read() -> Sequence[int]:
            return [message.msg_id for message in await fetch(connection, statements.read_pgmq(self.batch))]

        async def end(ids: Sequence[int]) -> object:
            finish = statements.delete_pgmq if self.finish == "delete" else statements.archive_pgmq
            return await fetch(connection, finish(ids))

        return read, end


def _bytes_of(number: int) -> bytes:
    return json.dumps({"id": number}).encode()
