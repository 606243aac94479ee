"""Workers and jobs for tests: quick workers, also in threads of their own, and jobs that are claimed by hand."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import psycopg

from headwater.postgres.statements import fetch_sync
from headwater.queue import FullJitter, Job, NewJob, Worker, WorkerSettings, work_statements
from headwater.queue.shift import Shift

SECOND = timedelta(seconds=1)
# One attempt after the other.
AT_ONCE = FullJitter(base="0s", most=3)


def quick(**changes) -> WorkerSettings:
    """Settings with which nothing takes long."""
    chosen = {"concurrency": 8, "poll": timedelta(milliseconds=50), "stop_within": timedelta(seconds=10), **changes}
    return WorkerSettings(**chosen)


@asynccontextmanager
async def running(*workers: Worker, url: str) -> AsyncIterator[list["asyncio.Task[None]"]]:
    """Workers that work meanwhile, and are stopped in good order; what one of them fails with is raised."""
    tasks = [asyncio.create_task(worker.run(url)) for worker in workers]
    # So that each knows that it runs, and can be stopped.
    await asyncio.sleep(0)
    try:
        yield tasks
    finally:
        for worker in workers:
            worker.stop()
        try:
            await asyncio.gather(*tasks)
        finally:
            await _connected()


async def _connected() -> None:
    """Those who were about to connect have done it, and left: nobody drops a database to which somebody is logging in."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if connecting := [task for task in tasks if getattr(task.get_coro(), "__qualname__", "") == "AsyncConnection.connect"]:
        await asyncio.wait(connecting, timeout=5)


class Elsewhere:
    """A worker in a thread with an event loop of its own: what blocks the one does not block the others."""

    def __init__(self, worker: Worker, url: str) -> None:
        self.worker, self._url = worker, url
        self._runs = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._runs.wait(10)
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.worker.stop)
        self._thread.join(15)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.create_task(self.worker.run(self._url))
        await asyncio.sleep(0)
        self._runs.set()
        await task


class Busy:
    """A handler that notes what it is given, and how many are in hand at once, in all and of each key."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.got: list[Any] = []
        self.most = 0
        self.most_of_key = 0
        self._now: list[str | None] = []

    async def __call__(self, job: Job) -> None:
        self.got.append(job.payload)
        self._now.append(job.key)
        self.most = max(self.most, len(self._now))
        if job.key is not None:
            self.most_of_key = max(self.most_of_key, self._now.count(job.key))
        await asyncio.sleep(self.seconds)
        self._now.remove(job.key)


def worker_with(
    handle: Any, kind: str = "send", settings: WorkerSettings | None = None, queues="default", **options
) -> Worker:
    """A worker with one handler."""
    worker = Worker(queues, settings or quick())

    async def handler(job: Job) -> Any:
        return await handle(job)

    worker.handler(kind, **options)(handler)
    return worker


def shift_of(worker: Worker) -> Shift:
    """What a worker that runs is made of."""
    assert worker._shift is not None
    return worker._shift


# So many at once that a worker claims ahead of those in hand; a handler behind `warmed` has them done at once.
WARM = [NewJob("send", "warm") for _ in range(64)]


def warmed(handle: Any) -> Any:
    async def handler(job: Job) -> Any:
        return None if job.payload == "warm" else await handle(job)

    return handler


def claim(
    connection: psycopg.Connection[Any],
    most: int = 10,
    *,
    queue: str = "default",
    kinds: Sequence[str] = ("send",),
    lease: timedelta = timedelta(seconds=60),
    worker: str = "by hand",
    sweeps: bool = True,
) -> list[Job]:
    """Claim as a worker does that looks for the first time, or with `sweeps=False` as one that has found nothing before."""
    nowhere: list[None] = [None] * 10
    statement = work_statements.claim(
        queue, kinds, most, lease, worker, sweeps=sweeps, after_run_ats=nowhere, after_ids=nowhere
    )
    return fetch_sync(connection, statement)


def end_leases(connection: psycopg.Connection[Any]) -> None:
    """As if time had passed: whatever is claimed may be claimed again."""
    connection.execute(
        "update headwater.job set lease_until = clock_timestamp() - interval '1 ms' where lease_until is not null"
    )


def states(connection: psycopg.Connection[Any]) -> dict[int, str]:
    return dict(connection.execute("select id, state from headwater.job_state order by id").fetchall())


def count(connection: psycopg.Connection[Any], state: str) -> int:
    row = connection.execute("select count(*) from headwater.job_state where state = %s", [state]).fetchone()
    assert row is not None
    return int(row[0])


def one_row(connection: psycopg.Connection[Any], columns: str, id: int) -> tuple[Any, ...]:
    """Columns of the job wherever it is."""
    query = psycopg.sql.SQL("select {} from headwater.job_state where id = %s").format(
        psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, columns.split()))
    )
    row = connection.execute(query, [id]).fetchone()
    assert row is not None
    return tuple(row)


def limit(connection: psycopg.Connection[Any], queue: str = "default", **limits: object) -> None:
    """Set what a queue is limited by."""
    names = psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, ["name", *limits]))
    values = psycopg.sql.SQL(", ").join([psycopg.sql.Placeholder()] * (len(limits) + 1))
    connection.execute("delete from headwater.queue where name = %s", [queue])
    connection.execute(
        psycopg.sql.SQL("insert into headwater.queue ({}) values ({})").format(names, values), [queue, *limits.values()]
    )


def keyed(name: str, key: str) -> dict[str, Any]:
    """The argument by which a job has a key of some kind, such as `unique`."""
    return {name: key}


def soon(**delta: float) -> datetime:
    return datetime.now(UTC) + timedelta(**delta)


@contextmanager
def old_snapshot(url: str) -> Iterator[None]:
    """A transaction that keeps everything from being vacuumed."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from headwater.job")
        yield
        connection.rollback()
