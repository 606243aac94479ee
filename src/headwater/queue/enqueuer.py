"""Enqueuing one by one at the price of many: callers share a statement and its commit."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Self

from headwater.errors import ConnectionLost, HeadwaterError, JobError
from headwater.postgres.session import leave
from headwater.postgres.statements import fetch
from headwater.queue import statements, work_statements
from headwater.queue.enqueue import enqueuing, ids_of
from headwater.queue.job import NewJob, encode_payload
from headwater.queue.session import QueueSession
from headwater.queue.settings import EnqueuerSettings
from headwater.queue.tracing import enqueue_span
from headwater.traces import trace_headers

_log = logging.getLogger(__name__)

# A commit takes some milliseconds; who holds a key for longer holds up nobody but those who want the same.
_MOMENT: Final = timedelta(milliseconds=50)
# Those are tried over and over, and each time is a transaction.
_HELD_MOMENT: Final = timedelta(milliseconds=500)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    job: NewJob
    # That of the one who waits, if there is one.
    trace: str | None
    id: "asyncio.Future[int]"


class Enqueuer:
    """Open it with `async with`, and enqueue from any number of tasks of that loop.

    Each call returns when its job is durable. A server that went away is waited for; a job whose answer was lost may be
    there twice then, unless it has an `idempotency_key`.
    """

    def __init__(self, url: str, settings: EnqueuerSettings | None = None) -> None:
        self._settings = settings or EnqueuerSettings()
        self._session = QueueSession(url, "headwater enqueuer", self._settings.answer_within)
        self._aside = QueueSession(url, "headwater enqueuer aside", self._settings.answer_within)
        self._bell = QueueSession(url, "headwater enqueuer bell", self._settings.answer_within)
        self._waiting: deque[_Waiting] = deque()
        # Those whose keys other transactions hold, and until when they are tried, by the monotonic clock.
        self._held: dict[_Waiting, float] = {}
        self._arrived, self._filled, self._room, self._written, self._put_aside = (asyncio.Event() for _ in range(5))
        self._rung: set[str] = set()
        self._is_open = self._is_writing = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        try:
            async with self._session.opening() as connection:
                await fetch(connection, work_statements.find_cancelled([]))
        except BaseException:
            await self._session.close()
            raise
        self._is_open = self._is_writing = True
        self._tasks = [
            asyncio.create_task(self._write(), name="enqueuer"),
            asyncio.create_task(self._write_held(), name="enqueuer aside"),
        ]
        if self._settings.rings:
            self._tasks.append(asyncio.create_task(self._ring(), name="enqueuer bell"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        for event in (self._arrived, self._filled):
            event.set()
        seconds = self._settings.close_within.total_seconds()
        ends_at = time.monotonic() + seconds
        self._session.end_within(seconds)
        self._aside.end_within(seconds)
        await leave(self._tasks[0], self._session, seconds)
        self._is_writing = False
        self._put_aside.set()
        await leave(self._tasks[1], self._aside, max(0.0, ends_at - time.monotonic()))
        self._written.set()
        for task in self._tasks[2:]:
            await leave(task, self._bell, 1.0)
        self._room.set()
        unknown = JobError("the enqueuer was closed before it knew that the job was enqueued")
        self._fail(unknown, [*self._waiting, *self._held])

    async def enqueue(  # noqa: PLR0913 - what a job is made of
        self,
        kind: str,
        payload: object = None,
        *,
        queue: str = "default",
        run_at: datetime | None = None,
        priority: int = 0,
        key: str | None = None,
        unique: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Enqueue a job in a transaction that is not the caller's, and return its id when it is durable."""
        job = NewJob(kind, payload, queue, run_at, priority, key, unique, idempotency_key)
        # The one who gives what cannot be enqueued hears of it, and none of those who share its transaction.
        encode_payload(job)
        while self._is_open and len(self._waiting) + len(self._held) >= self._settings.waiting_jobs:
            self._room.clear()
            await self._room.wait()
        if not self._is_open:
            raise JobError("the enqueuer is not open; use it within `async with`")
        one = _Waiting(job, trace_headers().get("traceparent"), asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._arrived.set()
        if len(self._waiting) >= self._settings.batch_jobs:
            self._filled.set()
        return await one.id

    async def _write(self) -> None:
        while self._waiting or self._is_open:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            await self._linger()
            count = min(len(self._waiting), self._settings.batch_jobs)
            batch = [self._waiting.popleft() for _ in range(count)]
            self._filled.clear()
            self._room.set()
            for part in _apart(batch):
                await self._write_these(part, self._session, _MOMENT)

    async def _write_held(self) -> None:
        """Those whose keys others hold, again and again; on a connection of its own, so that no other job waits for it."""
        while self._held or self._is_writing:
            if not self._held:
                self._put_aside.clear()
                await self._put_aside.wait()
                continue
            await self._write_these(list(self._held), self._aside, _HELD_MOMENT)
            now = time.monotonic()
            late = [one for one, until in self._held.items() if now > until]
            self._fail(ConnectionLost("another transaction holds the key of the job, and has not ended in time"), late)
            self._held = {one: until for one, until in self._held.items() if not one.id.done()}
            self._room.set()

    async def _linger(self) -> None:
        seconds = self._settings.linger.total_seconds()
        if seconds and self._is_open and len(self._waiting) < self._settings.batch_jobs:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._filled.wait(), seconds)

    async def _write_these(self, batch: list[_Waiting], session: QueueSession, moment: timedelta) -> None:
        jobs = [one.job for one in batch]
        written = 0
        try:
            with enqueue_span(jobs) as trace:
                for statement in enqueuing(jobs, [one.trace or trace for one in batch], rings=False, moment=moment):
                    rows = await session.insist(statement, self._settings.give_up_after)
                    ids = ids_of(rows)
                    self._tell(batch[written : written + len(ids)], ids)
                    written += len(ids)
        except HeadwaterError as exc:
            self._fail(exc, batch)
        except Exception as exc:  # noqa: BLE001 - whatever it is, those who wait hear of it
            _log.exception("jobs could not be enqueued")
            self._fail(JobError(f"the job was not enqueued: {exc!r}"), batch)

    def _tell(self, batch: list[_Waiting], ids: Sequence[int | None]) -> None:
        for one, id in zip(batch, ids, strict=True):
            if id is None:
                self._held.setdefault(one, time.monotonic() + self._settings.give_up_after.total_seconds())
                self._put_aside.set()
                continue
            if not one.id.done():
                one.id.set_result(id)
            self._rung.add(one.job.queue)
        self._written.set()

    def _fail(self, error: HeadwaterError, batch: Iterable[_Waiting]) -> None:
        for one in batch:
            if not one.id.done():
                one.id.set_exception(error)
                # Asked for here, so that nobody is blamed for not asking who was cancelled in the same moment.
                one.id.exception()

    async def _ring(self) -> None:
        """Wake workers after commits, and not too often; what cannot be rung is forgotten, since they look by themselves."""
        while self._is_open or self._rung:
            if not self._rung:
                self._written.clear()
                await self._written.wait()
                continue
            queues, self._rung = self._rung, set()
            try:
                await self._bell.fetch(statements.ring(queues))
            except HeadwaterError as exc:
                _log.debug("workers were not woken: %s", exc)
            await asyncio.sleep(self._settings.ring_every.total_seconds())


def _apart(batch: list[_Waiting]) -> list[list[_Waiting]]:
    """Those without a key that others may have first, since they wait for nobody; the others in one order, as all do."""
    keyed = [one for one in batch if one.job.unique is not None or one.job.idempotency_key is not None]
    keyed.sort(key=lambda one: (one.job.kind, one.job.idempotency_key or "", one.job.unique or ""))
    plain = [one for one in batch if one.job.unique is None and one.job.idempotency_key is None]
    return [part for part in (plain, keyed) if part]
