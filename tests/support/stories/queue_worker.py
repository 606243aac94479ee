"""A worker for stories, as a process of its own: it writes down what its handlers begin and end, before anything is marked.

`python -m tests.support.stories.queue_worker '{"url": ..., "path": ..., "queues": [...], ...}'` works until
SIGTERM. Killed, it leaves a file of complete lines. The payload of a job says what its handler does.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from headwater.errors import ConnectionLost
from headwater.postgres.connect import AsyncConnection, connect
from headwater.queue import Discard, FullJitter, Job, Outcome, Worker, WorkerSettings

KIND = "work"
# Attempts enough for all that a story does to a job, and waits that are short.
RETRY = FullJitter(base="20ms", most=50, longest="200ms")
_DURATIONS = {"lease", "settle_after", "answer_within"}
_COUNTS = ("claimed", "done", "released", "retried", "suspected_duplicates", "leases_lost", "timeouts")


class Notes:
    """Lines that outlive the process, each written at once; times are those of a clock that all processes share."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def begin(self) -> None:
        self._line("there")

    def write_begin(self, job: Job) -> None:
        """Also when it was claimed, by the same clock."""
        now, age = time.monotonic_ns(), time.time() - job.claimed_at.timestamp()
        self._line("began", job.id, job.attempt, now, now - round(age * 1e9))

    def write(self, what: str, job: Job) -> None:
        self._line(what, job.id, job.attempt, time.monotonic_ns())

    def end(self, worker: Worker) -> None:
        self._line("counts", json.dumps({name: getattr(worker.counts, name) for name in _COUNTS}))

    def _line(self, *parts: object) -> None:
        os.write(self._file, (" ".join(map(str, parts)) + "\n").encode())


class Handling:
    """The handler: waits for some time, and then fails, discards or does, as the payload says."""

    def __init__(self, notes: Notes, latency_seconds: float, choose: random.Random, effects_url: str | None) -> None:
        self._notes, self._latency_seconds, self._effects_url = notes, latency_seconds, effects_url
        self._random = choose
        self._connection: AsyncConnection | None = None
        self._connecting = asyncio.Lock()

    async def handle(self, job: Job) -> Outcome | None:
        self._notes.write_begin(job)
        try:
            return await self._do(job, job.payload)
        except asyncio.CancelledError:
            self._notes.write("stopped", job)
            raise

    async def _do(self, job: Job, wanted: dict[str, Any]) -> Outcome | None:
        if job.attempt == 1 and (path := wanted.get("blocks_until")):
            # Such as a handler that computes, or calls what is not async: the event loop stands still.
            wait_for(path)
        if path := wanted.get("waits_until"):
            await asyncio.to_thread(wait_for, path)
        await asyncio.sleep(self._random.uniform(0, wanted.get("seconds", self._latency_seconds)))
        if job.attempt <= wanted.get("fails", 0):
            self._notes.write("failed", job)
            raise RuntimeError("as its payload says")
        if wanted.get("discards"):
            self._notes.write("discarded", job)
            return Discard("as its payload says")
        await self._take_effect(job)
        self._notes.write("done", job)
        return None

    async def _take_effect(self, job: Job) -> None:
        if self._effects_url is None:
            return
        async with self._connecting:
            if self._connection is None:
                self._connection = await connect(self._effects_url, application_name="effects")
        await self._connection.execute("insert into effect (job, worker) values (%s, %s)", [job.id, os.getpid()])


def wait_for(path: str) -> None:
    """Until a file is there."""
    while not Path(path).exists():
        time.sleep(0.02)


async def work(worker: Worker, url: str, notes: Notes) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    notes.begin()
    while True:
        try:
            return await worker.run(url)
        except ConnectionLost:
            # One whose first connection is cut says so and ends; whoever runs it starts it again.
            if worker.counts.claimed:
                raise


def run(
    url: str,
    path: str,
    queues: list[str],
    latency_seconds: float = 0.01,
    timeout: str = "1m",
    effects_url: str | None = None,
    seed: int = 0,
    **settings: Any,
) -> None:
    # Each worker of a story draws numbers of its own.
    choose = random.Random(f"{seed} {Path(path).name}")
    # Durations are given in seconds.
    for name in settings.keys() & _DURATIONS:
        settings[name] = timedelta(seconds=settings[name])
    chosen = WorkerSettings(poll=timedelta(milliseconds=200), **settings)
    worker, notes = Worker(queues, chosen), Notes(Path(path))
    worker.handler(KIND, timeout=timeout, retry=RETRY)(Handling(notes, latency_seconds, choose, effects_url).handle)
    asyncio.run(work(worker, url, notes))
    notes.end(worker)


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
