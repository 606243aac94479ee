"""Jobs at a steady rate, in transactions of their own, and a worker that notes how old each is when it begins."""

import asyncio
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.queue.comparison_arms import connections
from benchmarks.queue.emails import work_until_over
from benchmarks.queue.processes import Board
from headwater import queue
from headwater.postgres.connect import AsyncConnection
from headwater.queue import Job, NewJob, Worker, WorkerSettings

STEADY: Final = "steady"
NOTE: Final = "note-the-time"


@dataclass(frozen=True, slots=True)
class Offered:
    jobs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Ages:
    """Of each job when it was sent, in seconds since the epoch, and how many seconds later its handler began.

    A job is sent right before the statement that enqueues it, so that its commit is counted too.
    """

    sent: "array[float]" = field(default_factory=lambda: array("d"))
    age: "array[float]" = field(default_factory=lambda: array("d"))

    def note(self, sent_ns: int, now_ns: int) -> None:
        self.sent.append(sent_ns / 1e9)
        self.age.append((now_ns - sent_ns) / 1e9)

    def of_first(self, share: float) -> npt.NDArray[np.float64]:
        """Those of the first part of the time."""
        return np.asarray(self.age)[self._times() <= share]

    def of_last(self, share: float) -> npt.NDArray[np.float64]:
        return np.asarray(self.age)[self._times() >= 1 - share]

    def _times(self) -> npt.NDArray[np.float64]:
        """When each was sent, from 0 for the first to 1 for the last."""
        sent = np.asarray(self.sent)
        return (sent - sent.min()) / max(np.ptp(sent), 1e-9) if sent.size else sent


@dataclass(frozen=True, slots=True)
class Offer:
    """Enqueue so many jobs a second, `per_call` in a transaction; connections take turns, and a late one catches up."""

    url: str
    per_second: int
    seconds: float
    connections: int = 1
    per_call: int = 1

    def run(self, board: Board) -> Offered:
        return asyncio.run(self._run(board))

    def due(self, place: int) -> Iterator[float]:
        """When the calls of a connection are due, from the beginning on."""
        calls = self.per_second / self.per_call
        return (number / calls for number in range(place, round(calls * self.seconds), self.connections))

    async def _run(self, board: Board) -> Offered:
        async with connections(self.url, self.connections) as opened:
            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for place, connection in enumerate(opened):
                    group.create_task(self._send(connection, place, began, board))
            return Offered(board.handled.value, time.monotonic() - began)

    async def _send(self, connection: AsyncConnection, place: int, began: float, board: Board) -> None:
        for due in self.due(place):
            wait = began + due - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            job = NewJob(NOTE, {"sent": time.time_ns()}, queue=STEADY)
            await queue.enqueue_many(connection, [job] * self.per_call)
            board.handled.value += self.per_call


@dataclass(frozen=True, slots=True)
class Receive:
    """A worker, until it is over."""

    url: str
    queues: tuple[str, ...] = (STEADY,)

    def run(self, board: Board) -> Ages:
        return asyncio.run(self._run(board))

    async def _run(self, board: Board) -> Ages:
        ages, worker = Ages(), Worker(queues=list(self.queues), settings=WorkerSettings())

        @worker.handler(NOTE)
        async def note_the_time(job: Job) -> None:
            now = time.time_ns()
            ages.note(job.payload["sent"], now)
            board.note()

        await work_until_over(worker, self.url, board)
        return ages


def milliseconds(values: npt.NDArray[np.float64], percent: float) -> float:
    return round(float(np.percentile(values, percent)) * 1000, 2) if values.size else float("nan")
