"""Behind a pooler in transaction mode: nothing that lasts longer than a transaction is relied upon."""

import asyncio
from datetime import timedelta

import psycopg
import pytest

from headwater import queue
from headwater.postgres.statements import parse
from headwater.queue import Enqueuer, NewJob, work_statements
from headwater.queue.session import QueueSession
from tests.support.queue.workers import Busy, count, limit, quick, running, worker_with
from tests.support.servers.pooler import pooler
from tests.support.topics.subscribers import until

PREPARED = parse("-- name: count\nselect count(*) from pg_prepared_statements")["count"]


@pytest.fixture
def pooled(queue_url):
    with pooler(queue_url) as (url, made):
        yield url
    assert sum(transactions > 0 for transactions in made.transactions.values()) > 1


async def test_two_workers_do_each_job_once(pooled, connection):
    limit(connection, "limited", most_running=2)
    busy = Busy(0.001)
    workers = [worker_with(busy, queues=["default", "limited"], settings=quick(listens=False)) for _ in range(2)]
    async with running(*workers, url=pooled):
        for part in range(5):
            jobs = [NewJob("send", part * 20 + n, queue="limited" if n % 2 else "default") for n in range(20)]
            queue.enqueue_many_sync(connection, jobs)
        await until(lambda: sum(worker.counts.done for worker in workers) == 100)
    assert sorted(busy.got) == list(range(100))
    assert sum(worker.counts.suspected_duplicates for worker in workers) == 0


async def test_what_one_client_has_prepared_is_no_other_ones_in_the_same_session(queue_url):
    with pooler(queue_url, sessions=1) as (url, _):
        one, other = (QueueSession(url, "test", timedelta(seconds=10)) for _ in range(2))
        try:
            # Prepared from the second time on.
            for _ in range(3):
                assert await one.fetch(work_statements.find_cancelled([])) == []
            for _ in range(3):
                assert await other.fetch(work_statements.read_clock())
            # Each goes on with its own, and neither has had to do without.
            assert await one.fetch(work_statements.find_cancelled([])) == []
            assert await one.fetch(PREPARED.bind(int)) == [2]
        finally:
            await one.close()
            await other.close()


async def test_a_worker_listens_past_the_pooler(pooled, queue_url, connection):
    worker = worker_with(Busy(), settings=quick(poll=timedelta(seconds=600)))
    task = asyncio.create_task(worker.run(pooled, listen_url=queue_url))
    try:
        await until(lambda: worker.counts.sweeps >= 2)
        for n in range(8):
            queue.enqueue_sync(connection, "send", n)
            await until(lambda n=n: worker.counts.done == n + 1)
    finally:
        worker.stop()
        await task


async def test_a_bell_that_nobody_hears_does_no_harm(pooled, connection):
    worker = worker_with(Busy())
    async with running(worker, url=pooled):
        queue.enqueue_sync(connection, "send")
        await until(lambda: worker.counts.done == 1)


@pytest.mark.timeout(60)
async def test_leases_are_renewed_and_jobs_fail_and_are_cancelled(pooled, connection, caplog):
    async def handle(job):
        if job.payload == "fail":
            raise ValueError
        # So often that a statement which was prepared somewhere would have been missed.
        await (asyncio.Event().wait() if job.payload == "cancel" else until(lambda: worker.counts.renewed >= 8, seconds=45))

    settings = quick(lease=timedelta(seconds=5), listens=False)
    worker = worker_with(handle, settings=settings, retry=queue.FullJitter(most=1))
    ids = queue.enqueue_many_sync(connection, [NewJob("send", payload) for payload in ("fail", "cancel", "long")])
    async with running(worker, url=pooled):
        await until(lambda: worker.counts.dead == 1)
        connection.execute("select headwater.queue_cancel_1(%s)", [ids[1:2]])
        await until(lambda: worker.counts.cancelled == 1)
        await until(lambda: worker.counts.done == 1, seconds=45)
    assert "were not renewed" not in caplog.text
    assert worker.counts.leases_lost == 0


async def test_jobs_are_enqueued_in_a_transaction_and_one_by_one(pooled, connection):
    async with await psycopg.AsyncConnection.connect(pooled) as own:
        own.prepare_threshold = None
        for n in range(5):
            async with own.transaction():
                await queue.enqueue(own, "send", n)
                await queue.enqueue(own, "send", n, unique="u")
    async with Enqueuer(pooled) as enqueuer:
        for n in range(10):
            await enqueuer.enqueue("send", n, idempotency_key=str(n))
    assert count(connection, "scheduled") == 16
