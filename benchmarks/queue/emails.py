"""The load test of section 003 by our queue: the same messages as jobs, and the same sender that does nothing."""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.queue.comparison_arms import connections, until_over
from benchmarks.queue.processes import Board
from benchmarks.queue.reference_messaging import BCC, BODY, CC, PRODUCER_POOL, SUBJECT, TO, Pool, Produced, send
from benchmarks.queue.span_counting import CONSUMER, PRODUCER, Spans, counting
from headwater import queue
from headwater.queue import Job, NewJob, Worker, WorkerSettings

EMAILS: Final = "emails"
SEND: Final = "send-email"
MESSAGE: Final = {"subject": SUBJECT, "to": TO, "cc": CC, "bcc": BCC, "body": BODY}
# How often a worker looks whether it is over.
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Schedule:
    """The producer: all messages in one call, which is one transaction."""

    url: str
    messages: int
    # By which its spans are known, if it is traced.
    traced_as: str = ""

    def run(self, board: Board) -> Produced:
        with counting(PRODUCER, self.traced_as) as spans:
            produced = asyncio.run(self._run())
        return replace(produced, spans=spans)

    async def _run(self) -> Produced:
        messages = [NewJob(SEND, MESSAGE, queue=EMAILS) for _ in range(self.messages)]
        async with connections(self.url, PRODUCER_POOL) as opened:
            pool = Pool(opened)
            await pool.warm()
            began = time.perf_counter()
            async with pool.taken() as connection, connection.transaction():
                await queue.enqueue_many(connection, messages)
                committed_at = time.time()
            return Produced(time.perf_counter() - began, committed_at)


@dataclass(frozen=True, slots=True)
class Consume:
    """A consumer, until it is over; its spans, if it is traced."""

    url: str
    traced_as: str = ""

    def run(self, board: Board) -> Spans:
        with counting(CONSUMER, self.traced_as) as spans:
            asyncio.run(self._run(board))
        return spans

    async def _run(self, board: Board) -> None:
        worker = Worker(queues=[EMAILS], settings=WorkerSettings())

        @worker.handler(SEND)
        async def send_email(job: Job) -> None:
            await send(job.payload)
            board.note()

        await work_until_over(worker, self.url, board)


async def work_until_over(worker: Worker, url: str, board: Board) -> None:
    """Run a worker until the benchmark says that it is over."""
    over = asyncio.Event()
    running = asyncio.create_task(worker.run(url))
    watching = asyncio.create_task(_watch(board, over))
    board.is_ready.value = 1
    await until_over(over, running)
    watching.cancel()
    worker.stop()
    await running


async def _watch(board: Board, over: asyncio.Event) -> None:
    while not board.is_over.value:  # noqa: ASYNC110 - another process says so
        await asyncio.sleep(_LOOK_SECONDS)
    over.set()
