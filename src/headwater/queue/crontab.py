"""Periodic jobs: every worker that knows one tries to enqueue it at its time, and one of them does."""

import asyncio
import logging
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from headwater.errors import ConnectionLost
from headwater.postgres.session import BACKOFF
from headwater.queue import work_statements
from headwater.queue.counts import Counts
from headwater.queue.handler import Periodic
from headwater.queue.session import QueueSession

_log = logging.getLogger(__name__)

# Clocks are set, and machines sleep: how long is waited without a look at the clock.
_LOOK_SECONDS: Final = 30.0


class Crontab:
    """A time that passed while no worker was there is made good for once, however many there were.

    The time is the server's: a worker whose clock is wrong would be early, or late, for all.
    """

    def __init__(self, session: QueueSession, periodic: Sequence[Periodic], counts: Counts) -> None:
        self._session, self._periodic, self._counts = session, periodic, counts
        self._next: dict[str, datetime] = {}
        self._ahead = timedelta(0)

    async def open(self) -> None:
        """What is new begins now; what was missed is enqueued."""
        if self._periodic:
            await self._set_clock()
        for one in self._periodic:
            await self._session.execute(work_statements.note_cron(one.name, one.expression))
            (fired_at,) = await self._session.fetch(work_statements.read_cron(one.name))
            now = self._now()
            if (last := one.last(now)) > fired_at:
                await self._fire(one, last)
            self._next[one.name] = one.next(now)

    async def run(self) -> None:
        failures = 0
        while self._periodic:
            one = min(self._periodic, key=lambda each: self._next[each.name])
            wait = (self._next[one.name] - self._now()).total_seconds()
            if wait > 0:
                await asyncio.sleep(min(wait, _LOOK_SECONDS))
                continue
            try:
                await self._set_clock()
                if self._next[one.name] <= self._now():
                    await self._fire(one, self._next[one.name])
                failures = 0
            except ConnectionLost as exc:
                failures += 1
                _log.warning("periodic job %s could not be enqueued, and is tried again: %s", one.name, exc)
                await asyncio.sleep(BACKOFF.after(failures, random.random()).total_seconds())
                continue
            if self._next[one.name] <= self._now():
                self._next[one.name] = one.next(self._now())

    def _now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    async def _set_clock(self) -> None:
        """How much the server's clock is ahead of ours."""
        (now,) = await self._session.fetch(work_statements.read_clock())
        self._ahead = now - datetime.now(UTC)

    async def _fire(self, one: Periodic, for_time: datetime) -> None:
        statement = work_statements.fire_cron(
            one.name,
            one.expression,
            for_time,
            queue=one.job.queue,
            kind=one.job.kind,
            payload=one.payload,
            priority=one.job.priority,
        )
        if await self._session.fetch(statement):
            self._counts.periodic += 1
            _log.debug("periodic job %s enqueued for %s", one.name, for_time, extra={"kind": one.job.kind})
