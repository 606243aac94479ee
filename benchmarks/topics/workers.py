"""Processes that write and read, so that neither waits for the other's interpreter: the same for all arms.

One process has all writers, and one the readers of each group. They live as long as the benchmark, since a new one takes a
second to begin.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.sharedctypes import Synchronized
from typing import Final, Protocol

from benchmarks.topics.comparison_arms import Arm, Send
from benchmarks.topics.load import Load, Reads, Writes

# What readers are told instead of how many messages there are: no group has so few that it would go on for the second.
UNKNOWN: Final = -1
ENOUGH: Final = -2
# How often readers look whether they have all.
_LOOK_SECONDS: Final = 0.05
# From when all writers are ready to the first message.
_LEAD_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Signals:
    """What the processes tell each other: how many messages readers are to expect, and when the writers began, or 0."""

    expected: "Synchronized[int]"
    began: "Synchronized[float]"


class Task(Protocol):
    def run(self, signals: Signals) -> object: ...


@dataclass(frozen=True, slots=True)
class Warm:
    """Nothing, but that the process has loaded what the arms need."""

    arms: Sequence[Arm]

    def run(self, signals: Signals) -> None: ...


@dataclass(frozen=True, slots=True)
class Write:
    """Send all that is due, and give up what is still not sent when the time is long over."""

    arm: Arm
    url: str
    load: Load
    patience_seconds: float = 2.0

    def run(self, signals: Signals) -> Writes:
        return asyncio.run(self._write(signals))

    async def _write(self, signals: Signals) -> Writes:
        writes = Writes()
        async with self.arm.senders(self.url, self.load) as senders:
            cpu = time.process_time()
            signals.began.value = writes.began = time.time() + _LEAD_SECONDS
            with suppress(TimeoutError):
                within = _LEAD_SECONDS + self.load.seconds + self.patience_seconds
                async with asyncio.timeout(within), asyncio.TaskGroup() as group:
                    for writer, send in enumerate(senders):
                        group.create_task(self._send(writer, send, writes))
            writes.cpu_seconds = time.process_time() - cpu
        return writes

    async def _send(self, writer: int, send: Send, writes: Writes) -> None:
        for due in self.load.due(writer, writes.began):
            wait = due - time.time()
            if wait > 0:
                await asyncio.sleep(wait)
            payloads = self.load.payloads(due)
            began = time.time()
            await send(payloads)
            writes.note(len(payloads), began)


@dataclass(frozen=True, slots=True)
class Read:
    """Receive until the group has as many messages as were written, or is told that it is enough."""

    arm: Arm
    url: str
    load: Load
    group: str

    def run(self, signals: Signals) -> Reads:
        return asyncio.run(self._read(signals.expected))

    async def _read(self, expected: "Synchronized[int]") -> Reads:
        reads, cpu = Reads(), time.process_time()
        async with self.arm.readers(self.url, self.load, self.group, reads) as readers:
            members = [asyncio.create_task(receive()) for receive in readers]
            while expected.value == UNKNOWN or reads.count < expected.value:
                await asyncio.wait(members, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for member in members:
                    if member.done():
                        member.result()
            reads.cpu_seconds = time.process_time() - cpu
            for member in members:
                member.cancel()
            await asyncio.gather(*members, return_exceptions=True)
        return reads


class Worker:
    """A process that runs one task after the other."""

    def __init__(self, signals: Signals) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, signals.expected, signals.began), daemon=True)
        self._process.start()

    def begin(self, task: Task) -> None:
        self._pipe.send(task)

    def is_done(self, seconds: float) -> bool:
        return self._pipe.poll(seconds)

    def result(self) -> object:
        found = self._pipe.recv()
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


@dataclass(frozen=True, slots=True)
class Workers:
    """The processes, and what they are told."""

    writer: Worker
    readers: list[Worker]
    signals: Signals


@contextmanager
def working(groups: int, arms: Sequence[Arm]) -> Iterator[Workers]:
    context = multiprocessing.get_context("spawn")
    signals = Signals(context.Value("q", UNKNOWN), context.Value("d", 0.0))
    every = [Worker(signals) for _ in range(groups + 1)]
    try:
        for worker in every:
            worker.begin(Warm(arms))
        for worker in every:
            worker.result()
        yield Workers(every[0], every[1:], signals)
    finally:
        for worker in every:
            worker.close()


def _serve(pipe: Pipe, expected: "Synchronized[int]", began: "Synchronized[float]") -> None:
    signals = Signals(expected, began)
    while (task := pipe.recv()) is not None:
        try:
            pipe.send(task.run(signals))
        except Exception as exc:  # noqa: BLE001 - it is for the one who gave the task
            pipe.send(RuntimeError(repr(exc)))
