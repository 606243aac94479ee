"""The queue of this repository, as an arm among others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

from benchmarks.queue import statements
from benchmarks.queue.comparison_arms import KIND, QUEUE, Note, SendMany, SendOne, until_over
from headwater import queue
from headwater.postgres.connect import Connection, connect
from headwater.postgres.statements import Statement
from headwater.queue import Enqueuer, EnqueuerSettings, Job, NewJob, Worker, WorkerSettings, prepare_queue


@dataclass(frozen=True, slots=True)
class HeadwaterArm:
    """A worker as it is by default, in the event loop of Python."""

    concurrency: int = 64
    has_uvloop: bool = False
    name: ClassVar[str] = "ours"
    keeps: ClassVar[str] = "a row of each job in a table of finished jobs"

    @property
    def settings(self) -> str:
        return f"{self.concurrency} at a time, {'uvloop' if self.has_uvloop else 'asyncio'}"

    def install(self, url: str, connection: Connection) -> None:
        prepare_queue(connection)

    def empty(self) -> Statement[None]:
        return statements.empty_ours()

    def count_left(self) -> Statement[int]:
        return statements.count_ours()

    @asynccontextmanager
    async def batches(self, url: str) -> AsyncIterator[SendMany]:
        connection = await connect(url)

        async def send(numbers: range) -> None:
            await queue.enqueue_many(connection, [NewJob(KIND, {"id": number}, queue=QUEUE) for number in numbers])

        async with connection:
            yield send

    @asynccontextmanager
    async def singles(self, url: str, callers: int) -> AsyncIterator[SendOne]:
        async with Enqueuer(url, EnqueuerSettings()) as enqueuer:

            async def send(number: int) -> None:
                await enqueuer.enqueue(KIND, {"id": number}, queue=QUEUE)

            yield send

    async def work(self, url: str, note: Note, over: asyncio.Event) -> None:
        worker = Worker(queues=[QUEUE], settings=WorkerSettings(concurrency=self.concurrency))

        @worker.handler(KIND)
        async def nothing(job: Job) -> None:
            note()

        running = asyncio.create_task(worker.run(url))
        await until_over(over, running)
        worker.stop()
        await running
