"""What is compared by jobs that do nothing: each arm enqueues them, works them off, and knows how many are not done."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import uvloop

from benchmarks.queue.processes import Board
from benchmarks.queue.testbed import LOOK_SECONDS
from headwater.postgres.connect import AsyncConnection, Connection, connect
from headwater.postgres.statements import Statement, fetch

QUEUE: Final = "jobs"
KIND: Final = "nothing"

Result = TypeVar("Result")
# Jobs with these numbers, durable when it returns.
SendMany: TypeAlias = Callable[[range], Awaitable[None]]
SendOne: TypeAlias = Callable[[int], Awaitable[None]]
# To be called by each job.
Note: TypeAlias = Callable[[], None]


class Arm(Protocol):
    """A queue as it is set; all arms have the same server, and leave of finished jobs what they leave by default."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> str:
        """How it is set, in words."""

    @property
    def keeps(self) -> str:
        """What is left of a job that is done, in words."""

    @property
    def has_uvloop(self) -> bool:
        """Whether its own command runs it so, or its users do."""

    def install(self, url: str, connection: Connection) -> None: ...

    def empty(self) -> Statement[None]: ...

    def count_left(self) -> Statement[int]:
        """The jobs whose completion is not durable."""

    def batches(self, url: str) -> AbstractAsyncContextManager[SendMany]: ...

    def singles(self, url: str, callers: int) -> AbstractAsyncContextManager[SendOne]: ...

    async def work(self, url: str, note: Note, over: asyncio.Event) -> None:
        """Work until it is over."""


def run_as(arm: Arm, work: Coroutine[Any, Any, Result]) -> Result:
    """In the event loop that the arm has."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if arm.has_uvloop else None) as runner:
        return runner.run(work)


@dataclass(frozen=True, slots=True)
class Load:
    """Nothing, but that the process has loaded what the arm needs."""

    arm: Arm

    def run(self, board: Board) -> None: ...


@dataclass(frozen=True, slots=True)
class Fill:
    """Enqueue jobs in batches, one after the other; the seconds that it took, without those to connect."""

    arm: Arm
    url: str
    jobs: int
    batch: int

    def run(self, board: Board) -> float:
        return run_as(self.arm, self._fill())

    async def _fill(self) -> float:
        async with self.arm.batches(self.url) as send:
            began = time.perf_counter()
            for first in range(0, self.jobs, self.batch):
                await send(range(first, min(first + self.batch, self.jobs)))
            return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Single:
    """Enqueue jobs one by one, so many callers at the same time, each of which waits until its job is durable."""

    arm: Arm
    url: str
    jobs: int
    callers: int

    def run(self, board: Board) -> float:
        return run_as(self.arm, self._send())

    async def _send(self) -> float:
        numbers = iter(range(self.jobs))
        async with self.arm.singles(self.url, self.callers) as send:

            async def call() -> None:
                for number in numbers:
                    await send(number)

            # The first of each connection takes longer, and may not be prepared.
            await asyncio.gather(*(send(0) for _ in range(self.callers)))
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(self.callers):
                    group.create_task(call())
            return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Drained:
    """How many jobs are durably done, in which time; `cpu_seconds` are those of the worker's process."""

    jobs: int
    seconds: float
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.jobs / self.seconds


@dataclass(frozen=True, slots=True)
class Drain:
    """Work off a backlog, for so many seconds at most. The clock runs from before the worker connects."""

    arm: Arm
    url: str
    jobs: int
    most_seconds: float

    def run(self, board: Board) -> Drained:
        return run_as(self.arm, self._drain())

    async def _drain(self) -> Drained:
        handled, over, left = asyncio.Event(), asyncio.Event(), self.jobs

        def note() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                handled.set()

        reader = await connect(self.url)
        async with reader:
            began, cpu = time.perf_counter(), time.process_time()
            working = asyncio.create_task(self.arm.work(self.url, note, over))
            waiting = asyncio.create_task(handled.wait())
            await asyncio.wait({working, waiting}, timeout=self.most_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not handled.is_set():
                waiting.cancel()
            (undone,) = await fetch(reader, self.arm.count_left())
            while undone and handled.is_set():
                await asyncio.sleep(LOOK_SECONDS)
                (undone,) = await fetch(reader, self.arm.count_left())
            taken = Drained(self.jobs - undone, time.perf_counter() - began, time.process_time() - cpu)
            over.set()
            await working
        return taken


async def until_over(over: asyncio.Event, running: asyncio.Task[None]) -> None:
    """Return when it is over, and at once if what runs has ended, which it should not have."""
    waiting = asyncio.create_task(over.wait())
    await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if running.done():
        running.result()


@asynccontextmanager
async def connections(url: str, count: int) -> AsyncIterator[list[AsyncConnection]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(await connect(url)) for _ in range(count)]
