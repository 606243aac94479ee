"""Cancelling jobs: those that nobody has, those that wait in a worker, and those in hand."""

import asyncio
from datetime import timedelta

import pytest

from headwater import queue
from headwater.postgres.statements import fetch_sync
from headwater.queue import NewJob, Retry, work_statements
from tests.support.queue.workers import (
    WARM,
    Busy,
    claim,
    end_leases,
    one_row,
    quick,
    running,
    soon,
    states,
    warmed,
    worker_with,
)
from tests.support.topics.subscribers import until

LISTENERS = "select pid from pg_stat_activity where application_name = 'headwater queue bell' and query ilike '%listen%'"


def cancel(connection, *ids):
    return sorted(connection.execute("select * from headwater.queue_cancel_1(%s)", [list(ids)]).fetchall())


def test_a_job_that_nobody_has_is_cancelled_at_once(connection):
    ids = queue.enqueue_many_sync(connection, [NewJob("send"), NewJob("send", run_at=soon(hours=1)), NewJob("send")])
    assert cancel(connection, ids[0], ids[1], 999) == [(ids[0], False), (ids[1], False)]
    assert states(connection) == {ids[0]: "cancelled", ids[1]: "cancelled", ids[2]: "scheduled"}
    assert cancel(connection, ids[0]) == []
    assert [job.id for job in claim(connection)] == [ids[2]]


def test_a_job_that_is_finished_is_not_cancelled(connection):
    id = queue.enqueue_sync(connection, "send")
    fetch_sync(connection, work_statements.finish(claim(connection), "done"))
    assert cancel(connection, id) == []
    assert states(connection) == {id: "done"}


class Waiting:
    """A handler that waits until it is stopped, and says so."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.stopped: list[int] = []
        self.go_on = asyncio.Event()

    async def __call__(self, job):
        self.begun.append(job.id)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.stopped.append(job.id)
            raise


@pytest.mark.parametrize("listens", [True, False])
async def test_a_job_in_hand_is_stopped(queue_url, connection, listens):
    """By the bell at once; without it when its lease is renewed."""
    handle = Waiting()
    lease = timedelta(seconds=60 if listens else 1.2)
    settings = quick(listens=listens, lease=lease)
    workers = [worker_with(handle, settings=settings) for _ in range(2)]
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(3)])
    async with running(*workers, url=queue_url):
        await until(lambda: len(handle.begun) == 3)
        if listens:
            await until(lambda: len(connection.execute(LISTENERS).fetchall()) == 2)
        assert cancel(connection, ids[1]) == [(ids[1], True)]
        await until(lambda: handle.stopped == [ids[1]])
        await until(lambda: sum(worker.counts.cancelled for worker in workers) == 1)
        assert states(connection)[ids[1]] == "cancelled"
        handle.go_on.set()
        await until(lambda: sum(worker.counts.done for worker in workers) == 2)
    assert states(connection) == {ids[0]: "done", ids[1]: "cancelled", ids[2]: "done"}


async def test_a_job_that_waits_in_a_worker_is_not_begun_and_the_worker_goes_on(queue_url, connection):
    handle = Waiting()
    worker = worker_with(warmed(handle), settings=quick(concurrency=1, claim_most=8))
    ids = queue.enqueue_many_sync(connection, [*WARM, *(NewJob("send", n) for n in range(2))])[len(WARM) :]
    async with running(worker, url=queue_url):
        await until(lambda: handle.begun == ids[:1] and worker.counts.waiting == 1)
        await until(lambda: connection.execute(LISTENERS).fetchone())
        assert cancel(connection, ids[1]) == [(ids[1], True)]
        await until(lambda: worker.counts.cancelled == 1)
        handle.go_on.set()
        await until(lambda: worker.counts.done == len(WARM) + 1)
        # There is room again, of which nobody else tells.
        later = queue.enqueue_sync(connection, "send")
        await until(lambda: worker.counts.done == len(WARM) + 2)
    assert handle.begun == [ids[0], later]


async def test_a_job_whose_worker_is_gone_is_cancelled_by_the_next_one(queue_url, connection):
    busy = Busy()
    id = queue.enqueue_sync(connection, "send")
    claim(connection)
    assert cancel(connection, id) == [(id, True)]
    end_leases(connection)
    worker = worker_with(busy)
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.cancelled == 1)
    assert busy.got == []
    assert states(connection) == {id: "cancelled"}


async def test_a_job_that_is_done_before_it_hears_of_it_is_done(queue_url, connection):
    async def handle(job):
        cancel(connection, job.id)

    worker = worker_with(handle)
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done + worker.counts.cancelled == 1)
    assert states(connection)[id] in ("done", "cancelled")
    assert worker.counts.suspected_duplicates == 0


async def test_a_job_that_was_cancelled_while_it_failed_is_not_tried_again(queue_url, connection):
    tried = []

    async def handle(job):
        tried.append(job.attempt)
        connection.execute("update headwater.job set is_cancelled = true")
        return Retry("0s")

    worker = worker_with(handle, settings=quick(listens=False))
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.cancelled == 1)
    assert tried == [1]
    assert one_row(connection, "state", id) == ("cancelled",)


async def test_a_cancel_that_was_missed_is_heard_of_after_the_reconnect(queue_url, connection):
    handle = Waiting()
    worker = worker_with(handle)
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: handle.begun == [id] and connection.execute(LISTENERS).fetchone())
        (pid,) = connection.execute(LISTENERS).fetchone()
        with connection.transaction():
            connection.execute("select pg_terminate_backend(%s, 10000)", [pid])
            cancel(connection, id)
        await until(lambda: worker.counts.cancelled == 1)
    assert handle.stopped == [id]


async def test_many_are_cancelled_while_two_workers_have_them_and_each_is_one_thing_or_the_other(queue_url, connection):
    busy = Busy(0.002)
    workers = [worker_with(busy, settings=quick(concurrency=4)) for _ in range(2)]
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(300)])
    async with running(*workers, url=queue_url):
        await until(lambda: sum(worker.counts.done for worker in workers) > 10)
        cancel(connection, *ids[::2])
        await until(lambda: set(states(connection).values()) == {"done", "cancelled"})
    after = states(connection)
    assert all(after[id] == "done" for id in ids[1::2])
    done = sum(worker.counts.done for worker in workers)
    assert done == sum(state == "done" for state in after.values())
    assert len(busy.got) == len(set(busy.got))
    assert sum(worker.counts.suspected_duplicates for worker in workers) == 0


async def test_a_unique_job_may_be_enqueued_again_as_soon_as_the_one_in_hand_is_cancelled(queue_url, connection):
    handle = Waiting()
    worker = worker_with(handle)
    first = queue.enqueue_sync(connection, "send", unique="invoice 7")
    async with running(worker, url=queue_url):
        await until(lambda: handle.begun == [first])
        cancel(connection, first)
        second = queue.enqueue_sync(connection, "send", unique="invoice 7")
        assert second != first
        handle.go_on.set()
        await until(lambda: worker.counts.done >= 1 and states(connection)[second] == "done")


def test_one_whose_worker_is_gone_is_cancelled_at_once(connection):
    id = queue.enqueue_sync(connection, "send")
    claim(connection)
    end_leases(connection)
    assert cancel(connection, id) == [(id, False)]
    assert states(connection) == {id: "cancelled"}
