"""Lanes: whatever becomes of one job, the next has its turn."""

import asyncio
import time
from dataclasses import replace
from datetime import timedelta

from headwater.queue import Done, FullJitter
from headwater.queue.counts import Counts
from headwater.queue.handler import Handler
from headwater.queue.held import Holding
from headwater.queue.lanes import Lanes
from headwater.queue.outcome import Finished
from headwater.queue.pace import Pace
from headwater.queue.settler import Settled
from tests.support.queue.claimed_jobs import job


async def test_a_job_that_is_cancelled_while_its_begin_is_written_down_leaves_its_lane_to_the_next():
    noting = asyncio.Event()
    settled: list[Settled] = []

    async def note_begin(_job):
        noting.set()
        await asyncio.Event().wait()

    async def handle(_job):
        return Done()

    handlers = {"send": Handler("send", handle, timedelta(minutes=1), FullJitter())}
    lanes = Lanes(handlers, Pace(10, time.monotonic()), Counts(), settled.append, lambda: None, note_begin)
    suspect, next_ = (Holding(one, 60.0, time.monotonic()) for one in (replace(job(1), lost=3), job(2)))
    lanes.open(1)
    lanes.add([suspect, next_])
    await noting.wait()
    suspect.is_cancelled = True
    suspect.interrupt()
    async with asyncio.timeout(10):
        while len(settled) < 2:  # noqa: ASYNC110 - it is told by a call
            await asyncio.sleep(0)
    assert [(one.holding.job.id, one.settlement) for one in settled] == [(1, Finished("cancelled")), (2, Finished("done"))]
    lanes.refuse()
