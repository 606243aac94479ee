"""One run of a worker: the parts that find jobs, do them, and write what became of them, from beginning to end."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Final

from headwater.errors import HeadwaterError
from headwater.postgres.statements import fetch
from headwater.queue import work_statements
from headwater.queue.bell import hear
from headwater.queue.claimer import Claimer
from headwater.queue.counts import Counts
from headwater.queue.crontab import Crontab
from headwater.queue.days import look_after_days
from headwater.queue.handler import Handler, Periodic
from headwater.queue.held import Held, Holding
from headwater.queue.job import Job
from headwater.queue.lanes import Lanes
from headwater.queue.outcome import Finished
from headwater.queue.pace import Pace
from headwater.queue.renewer import Renewer
from headwater.queue.session import QueueSession
from headwater.queue.settings import WorkerSettings
from headwater.queue.settler import Settled, Settler

_log = logging.getLogger(__name__)

# For a claim that is under way, and for what is still to be written, when the worker ends.
_END_SECONDS: Final = 10.0


class Shift:
    """Jobs go from the claimer to the lanes, from there to the settler, and are held until they are settled."""

    def __init__(  # noqa: PLR0913 - what a worker is made of
        self,
        url: str,
        listen_url: str,
        queues: Sequence[str],
        handlers: Mapping[str, Handler],
        periodic: Sequence[Periodic],
        settings: WorkerSettings,
        counts: Counts,
    ) -> None:
        self._url, self._listen_url, self._settings, self._counts = url, listen_url, settings, counts
        self._claims, self._marks, self._aside = (
            QueueSession(url, f"headwater queue {what}", settings.answer_within) for what in ("claims", "marks", "aside")
        )
        self._held = Held(settings.lease)
        self._cancelling: set[asyncio.Task[None]] = set()
        pace = Pace(settings.claim_most, time.monotonic())
        self._settler = Settler(self._marks, self._held, counts, settings, self._written)
        self._lanes = Lanes(handlers, pace, counts, self._settle, self._make_room, self._note_begin)
        label = f"{socket.gethostname()}:{os.getpid()}"
        kinds = list(handlers)
        self._claimer = Claimer(self._claims, queues, kinds, label, settings, self._held, self._lanes, pace, counts)
        self._crontab = Crontab(self._aside, periodic, counts)
        self._stopping = asyncio.Event()
        self._parts: list[asyncio.Task[None]] = []

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        claiming = writing = None
        renewer = None
        try:
            await self._open()
            renewer = Renewer(self._url, self._settings.lease, self._held, self._counts)
            writing = asyncio.create_task(self._settler.run(), name="queue marks")
            self._lanes.open(self._settings.concurrency)
            claiming = asyncio.create_task(self._claimer.run(), name="queue claims")
            self._start_parts()
            await self._until_end([claiming, writing])
        finally:
            # Also one who is cancelled sees to what was begun: sent is sent, and has to be marked.
            await _through(asyncio.create_task(self._close(claiming, writing, renewer)))

    async def _open(self) -> None:
        async with self._claims.opening() as connection:
            await fetch(connection, work_statements.find_cancelled([]))
        await self._crontab.open()

    def _start_parts(self) -> None:
        """What may end at any moment, and nothing is lost by it."""
        work = [self._crontab.run(), look_after_days(self._url, self._settings)]
        if self._settings.listens:
            work.append(hear(self._listen_url, self._claimer.ring, self._cancel))
        self._parts = [asyncio.create_task(one) for one in work]

    async def _until_end(self, tasks: "Sequence[asyncio.Task[None]]") -> None:
        """Return when it is to stop; raise what one of the parts has failed with."""
        stopping = asyncio.create_task(self._stopping.wait())
        pending: set[asyncio.Task[None] | asyncio.Task[bool]] = {stopping, *tasks, *self._parts}
        try:
            while not self._stopping.is_set():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            stopping.cancel()

    async def _close(
        self, claiming: "asyncio.Task[None] | None", writing: "asyncio.Task[None] | None", renewer: Renewer | None
    ) -> None:
        self._claimer.stop()
        self._lanes.refuse()
        await _end([*self._parts, *self._cancelling], 0)
        # What a claim that is under way brings is given back.
        await _end([claiming] if claiming is not None else [], _END_SECONDS)
        await self._lanes.close(self._settings.stop_within.total_seconds())
        self._settler.close()
        if writing is not None:
            await _end([writing], _END_SECONDS)
        if left := len(self._held):
            _log.error("outcomes of %d jobs were not written, and these are done again when their leases end", left)
        if renewer is not None:
            await renewer.close()
        for session in (self._claims, self._marks, self._aside):
            await session.close()

    def _settle(self, settled: Settled) -> None:
        self._settler.put(settled)

    def _written(self, next_seconds: float | None) -> None:
        self._claimer.written()
        if next_seconds is not None:
            self._claimer.due_within(next_seconds)

    def _make_room(self) -> None:
        self._claimer.make_room()

    async def _note_begin(self, job: Job) -> None:
        try:
            await self._aside.execute(work_statements.begin(job))
        except HeadwaterError as exc:
            _log.warning("it could not be written down that job %d is begun: %s", job.id, exc, extra={"job": job.id})

    def _cancel(self, id: int | None) -> None:
        """A job is to be cancelled, or any may be: what is written of them decides."""
        ids = self._held.ids if id is None else [id] if self._held.find(id) is not None else []
        if ids:
            task = asyncio.create_task(self._cancel_these(ids), name="queue cancel")
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def _cancel_these(self, ids: Sequence[int]) -> None:
        try:
            cancelled = await self._aside.fetch(work_statements.find_cancelled(ids))
        except HeadwaterError as exc:
            _log.warning("it is not known whether %d jobs are cancelled, and they go on: %s", len(ids), exc)
            return
        for id in cancelled:
            if (holding := self._held.find(id)) is not None:
                self._cancel_one(holding)

    def _cancel_one(self, holding: Holding) -> None:
        holding.is_cancelled = True
        if self._lanes.drop(holding):
            self._settle(Settled(holding, Finished("cancelled")))
        else:
            holding.interrupt()


async def _end(tasks: "Sequence[asyncio.Task[None]]", seconds: float) -> None:
    """Wait for tasks to end by themselves, for so long, and end them then."""
    if tasks and seconds:
        await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _through(task: "asyncio.Task[None]") -> None:
    """Wait for a task to its end, also when cancelled meanwhile, and be cancelled then."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            cancelled = exc
    task.result()
    if cancelled is not None:
        raise cancelled
