"""Finding jobs: when somebody rings, when one becomes due, and every now and then; a batch at a time, and some ahead."""

import asyncio
import logging
import random
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from headwater.errors import ConnectionLost
from headwater.postgres.session import BACKOFF
from headwater.queue import work_statements
from headwater.queue.counts import Counts
from headwater.queue.held import Held
from headwater.queue.job import Job
from headwater.queue.lanes import Lanes
from headwater.queue.pace import Pace
from headwater.queue.place import Place
from headwater.queue.session import QueueSession
from headwater.queue.settings import WorkerSettings

_log = logging.getLogger(__name__)

# How often it is said that jobs of a queue are overdue.
_SAY_SECONDS: Final = 60.0
# How often it is asked when the next job is due, at most, if somebody rings and there is nothing to do yet.
_ASK_SECONDS: Final = 0.1
# Who is told of a later time is told of it again in time.
_NEAR_SECONDS: Final = 60.0


class Claimer:
    """Has the lanes of a worker busy with jobs of its queues, which take turns."""

    def __init__(  # noqa: PLR0913 - the parts of a worker
        self,
        session: QueueSession,
        queues: Sequence[str],
        kinds: Sequence[str],
        label: str,
        settings: WorkerSettings,
        held: Held,
        lanes: Lanes,
        pace: Pace,
        counts: Counts,
    ) -> None:
        self._session, self._kinds, self._label, self._settings = session, sorted(kinds), label, settings
        self._held, self._lanes, self._pace, self._counts = held, lanes, pace, counts
        self._places = {queue: Place(settings.poll.total_seconds()) for queue in queues}
        self._limited: set[str] = set()
        # For how long something is due in each queue, and when it was last said.
        self._overdue: dict[str, float] = {}
        self._said_at: dict[str, float] = {}
        self._ask_at: dict[str, float] = {}
        # The queues that somebody has rung for; and that there are such.
        self._wanted: set[str] = set()
        self._rung = asyncio.Event()
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()

    def ring(self, queue: str | None = None) -> None:
        """There may be jobs: in a queue, or in any and also some that nobody told of."""
        if queue is None:
            for place in self._places.values():
                place.sweep_at = 0.0
        self._want(self._places if queue is None else self._places.keys() & {queue})

    def make_room(self) -> None:
        """Fewer jobs wait."""
        if self._has_room:
            self._room.set()

    def written(self) -> None:
        """Outcomes are: where there are limits, that lets others begin."""
        self.make_room()
        self._want(self._limited)

    def due_within(self, seconds: float, queue: str | None = None) -> None:
        """A job becomes due by then, in a queue or in any."""
        if seconds <= max(_NEAR_SECONDS, 2 * self._settings.poll.total_seconds()):
            queues = self._places if queue is None else {queue}
            asyncio.get_running_loop().call_later(seconds, self._want, queues)

    def _want(self, queues: Collection[str]) -> None:
        if queues:
            self._wanted.update(queues)
            self._rung.set()

    def stop(self) -> None:
        self._stopping.set()
        self._rung.set()
        self._room.set()

    @property
    def _has_room(self) -> bool:
        """Whether few wait, and what is done and not marked yet is not too much: a crash would have that done again."""
        wanted, settings = self._wanted_jobs, self._settings
        most_held = wanted + settings.concurrency + 2 * settings.settle_most
        return wanted > 0 and len(self._lanes) * 2 <= wanted and len(self._held) < most_held

    @property
    def _wanted_jobs(self) -> int:
        """How many may wait: one for each lane that has nothing to do, and what is done within a moment."""
        return self._lanes.idle + self._pace.ahead(time.monotonic())

    async def run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                await self._round()
                failures = 0
            except ConnectionLost as exc:
                failures, self._counts.is_database_up = failures + 1, False
                wait = BACKOFF.after(failures, random.random()).total_seconds()
                _log.warning("jobs cannot be claimed, again in %.1f s: %s", wait, exc)
                self.ring()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), wait)

    async def _round(self) -> None:
        """Claim once from each queue that may have some, and wait if there was nothing."""
        self._rung.clear()
        wanted, self._wanted = self._wanted, set()
        now = time.monotonic()
        queues = [
            queue for queue, place in self._places.items() if queue in wanted or place.has_more or place.sweep_at <= now
        ]
        random.shuffle(queues)
        for queue in queues:
            while not self._stopping.is_set():
                self._room.clear()
                if self._has_room:
                    # At least one, also if fewer are wanted since a moment ago: there is room.
                    await self._claim(queue, max(1, self._wanted_jobs - len(self._lanes)))
                    break
                await self._room.wait()
        if not any(place.has_more for place in self._places.values()):
            await self._wait()

    async def _wait(self) -> None:
        """Until somebody rings, a job becomes due, or a sweep is."""
        left = min(place.sweep_at for place in self._places.values()) - time.monotonic()
        if left > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._rung.wait(), left)

    async def _claim(self, queue: str, most: int) -> None:
        place, began = self._places[queue], time.monotonic()
        sweeps = place.begin(began)
        statement = work_statements.claim(
            queue,
            self._kinds,
            most,
            self._settings.lease,
            self._label,
            sweeps=sweeps,
            after_run_ats=place.run_ats,
            after_ids=place.ids,
        )
        jobs = await self._session.fetch(statement)
        if not self._counts.is_database_up:
            _log.info("jobs can be claimed again")
        self._counts.is_database_up = True
        self._counts.polls += 1
        self._take(jobs, began)
        if sweeps:
            self._counts.sweeps += 1
            await self._look(queue)
        elif not jobs or (queue in self._limited and len(jobs) < most):
            await self._ask(queue, began)
        place.note(jobs, most, swept=sweeps, began=began, ended=time.monotonic())

    def _take(self, jobs: list[Job], began: float) -> None:
        if not jobs:
            return
        jobs.sort(key=lambda job: (-job.priority, job.run_at, job.id))
        self._counts.claimed += len(jobs)
        for job in jobs:
            waited = (job.claimed_at - max(job.run_at, job.created_at)).total_seconds()
            self._counts.schedule_to_claim.note(max(0.0, waited))
        # From before they were claimed: their leases last at least as long as is counted here.
        self._lanes.add(self._held.add(jobs, began))

    async def _look(self, queue: str) -> None:
        """When the next one is due, and whether one is for too long."""
        (looked,) = await self._session.fetch(work_statements.look(queue))
        if looked.is_limited:
            self._limited.add(queue)
        else:
            self._limited.discard(queue)
        if looked.next_seconds is not None:
            self.due_within(max(0.0, looked.next_seconds), queue)
        self._overdue[queue] = looked.oldest_seconds or 0.0
        self._counts.overdue_seconds = max(self._overdue.values())
        if self._overdue[queue] > self._settings.overdue.total_seconds():
            self._say_overdue(queue, looked.oldest_kind)

    async def _ask(self, queue: str, now: float) -> None:
        """Somebody has rung, and there is nothing, or a limit holds it up: it may be due, or begin, in a moment."""
        if now < (ask_at := self._ask_at.get(queue, 0.0)):
            self.due_within(ask_at - now, queue)
            return
        self._ask_at[queue] = now + _ASK_SECONDS
        (seconds,) = await self._session.fetch(work_statements.look_ahead(queue))
        if seconds is not None:
            self.due_within(max(0.0, seconds), queue)

    def _say_overdue(self, queue: str, kind: str | None) -> None:
        now = time.monotonic()
        if now - self._said_at.get(queue, float("-inf")) < _SAY_SECONDS:
            return
        self._said_at[queue] = now
        reason = (
            "limits of the queue hold it up, or it is paused" if kind in self._kinds else "no handler here knows the kind"
        )
        _log.warning(
            "a job of kind %s is due for %.0f s in queue %s, and nobody has it: %s",
            kind,
            self._overdue[queue],
            queue,
            reason,
            extra={"queue": queue, "kind": kind},
        )
