"""A hit of a failpoint that is not armed, in nanoseconds, and the share of a worker's time that all its hits take.

The worker does jobs that do nothing, so that its loop is as short as it gets. Its hits are counted in a run of their own, by
points that are armed for a hit which never comes.
"""

import asyncio
import statistics
import time
from typing import Final

from benchmarks.databases import DURABLE
from benchmarks.report import Bar, report, wants_quick
from headwater import failpoints, queue
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import connect, connect_sync
from headwater.queue import Job, NewJob, Worker, WorkerSettings, prepare_queue

_HITS: Final = 1_000_000
_NEVER: Final = 10**12
_POINTS: Final = ("queue.claimed", "queue.handled", "queue.lease_renewal")


def main() -> None:
    quick = wants_quick()
    jobs, rounds = (5_000, 3) if quick else (50_000, 7)
    nanoseconds = statistics.median(_time_hits() for _ in range(rounds))
    with EmbeddedPostgres(PostgresSettings(config=DURABLE)) as server:
        with connect_sync(server.url) as connection:
            prepare_queue(connection)
        seconds = statistics.median(asyncio.run(_work(server.url, jobs)) for _ in range(rounds))
        hits = _count_hits(server.url, jobs)
    figures = {"jobs": jobs, "seconds": round(seconds, 3), "hits": hits}
    share = hits * nanoseconds / 1e9 / seconds
    bars = [Bar("hit_ns", round(nanoseconds, 1), at_most=200), Bar("share_of_worker", float(f"{share:.2g}"), at_most=0.001)]
    report("failpoints", quick, figures, bars)


def _time_hits() -> float:
    """Nanoseconds of a hit, without those of the loop."""
    hit = failpoints.hit
    began = time.perf_counter_ns()
    for _ in range(_HITS):
        hit("queue.claimed")
    between = time.perf_counter_ns()
    for _ in range(_HITS):
        pass
    return (2 * between - began - time.perf_counter_ns()) / _HITS


def _count_hits(url: str, jobs: int) -> int:
    armed = failpoints.parse(",".join(f"{name}=kill@{_NEVER}" for name in _POINTS))
    failpoints._ARMED.update(armed)
    try:
        asyncio.run(_work(url, jobs))
    finally:
        failpoints._ARMED.clear()
    return sum(point.hits for point in armed.values())


async def _work(url: str, jobs: int) -> float:
    """The seconds that one worker takes for so many jobs."""
    async with await connect(url) as connection:
        await queue.enqueue_many(connection, [NewJob("nothing", {"id": number}) for number in range(jobs)])
    worker, left = Worker(settings=WorkerSettings(concurrency=64)), jobs

    @worker.handler("nothing")
    async def nothing(job: Job) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            worker.stop()

    began = time.perf_counter()
    await worker.run(url)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
