"""Order per key: one at a time, in the order in which they were enqueued, whatever becomes of the earlier one."""

import asyncio

from headwater import queue
from headwater.postgres.statements import fetch_sync
from headwater.queue import FullJitter, NewJob, Retry, work_statements
from tests.support.queue.workers import AT_ONCE, Busy, claim, end_leases, limit, quick, running, soon, worker_with
from tests.support.topics.subscribers import until


def finish(connection, jobs):
    return fetch_sync(connection, work_statements.finish(jobs, "done"))


async def test_jobs_of_a_key_are_done_one_after_the_other_in_their_order_by_two_workers(queue_url, connection):
    limit(connection, is_ordered=True)
    busy = Busy(0.001)
    workers = [worker_with(busy) for _ in range(2)]
    jobs = [NewJob("send", (key, n), key=key) for n in range(20) for key in ("a", "b", "c")]
    queue.enqueue_many_sync(connection, jobs)
    async with running(*workers, url=queue_url):
        await until(lambda: sum(worker.counts.done for worker in workers) == 60)
    for key in ("a", "b", "c"):
        assert [n for of, n in busy.got if of == key] == list(range(20))
    assert busy.most_of_key == 1
    assert busy.most > 1


async def test_a_job_waits_for_the_retries_of_an_earlier_one(queue_url, connection):
    limit(connection, is_ordered=True)
    order = []

    async def handle(job):
        order.append((job.payload, job.attempt))
        if job.payload == 1 and job.attempt == 1:
            return Retry("0.2s")
        if job.payload == 2:
            raise ValueError
        await asyncio.sleep(0)
        return None

    workers = [worker_with(handle, retry=AT_ONCE) for _ in range(2)]
    queue.enqueue_many_sync(connection, [NewJob("send", n, key="k") for n in range(1, 5)])
    async with running(*workers, url=queue_url):
        await until(lambda: sum(worker.counts.done for worker in workers) == 3)
    # The one that is given up holds up nobody any more.
    assert order == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1)]


def test_a_job_waits_for_an_earlier_one_of_another_priority_kind_or_time(connection):
    limit(connection, is_ordered=True)
    queue.enqueue_sync(connection, "send", "later", key="delayed", run_at=soon(hours=1))
    queue.enqueue_sync(connection, "send", 2, key="delayed")
    queue.enqueue_sync(connection, "unknown", 1, key="of another kind")
    queue.enqueue_sync(connection, "send", 2, key="of another kind")
    queue.enqueue_sync(connection, "send", 1, key="less urgent")
    queue.enqueue_sync(connection, "send", 2, key="less urgent", priority=9)
    assert [(job.key, job.payload) for job in claim(connection)] == [("less urgent", 1)]


def test_a_job_that_is_claimed_again_after_its_lease_stays_the_first(connection):
    limit(connection, is_ordered=True)
    queue.enqueue_many_sync(connection, [NewJob("send", n, key="k") for n in range(3)])
    assert [job.payload for job in claim(connection)] == [0]
    end_leases(connection)
    (job,) = claim(connection)
    assert (job.payload, job.attempt) == (0, 2)
    assert claim(connection) == []
    finish(connection, [job])
    assert [job.payload for job in claim(connection)] == [1]


def test_an_earlier_one_that_comes_late_does_not_run_beside_a_later_one(connection, application):
    """Its transaction took long, so that its number is lower than that of one which is in hand."""
    limit(connection, is_ordered=True)
    queue.enqueue_sync(application, "send", "late", key="k", priority=5)
    queue.enqueue_sync(connection, "send", "in hand", key="k")
    (job,) = claim(connection)
    assert job.payload == "in hand"
    application.commit()
    assert claim(connection) == []
    finish(connection, [job])
    assert [job.payload for job in claim(connection)] == ["late"]


def test_a_dead_one_that_is_retried_does_not_run_beside_a_later_one(connection):
    limit(connection, is_ordered=True)
    id = queue.enqueue_sync(connection, "send", "dead", key="k")
    fetch_sync(connection, work_statements.give_up(claim(connection), ["broken"], ["ValueError"]))
    queue.enqueue_sync(connection, "send", "in hand", key="k")
    (job,) = claim(connection)
    connection.execute("select headwater.queue_retry_1(%s)", [[id]])
    assert claim(connection) == []
    finish(connection, [job])
    assert [job.payload for job in claim(connection)] == ["dead"]


def test_keys_hold_up_no_other_keys_and_no_other_queues(connection):
    limit(connection, is_ordered=True)
    limit(connection, "other", is_ordered=True)
    for name in ("default", "other"):
        queue.enqueue_many_sync(connection, [NewJob("send", key, key=key, queue=name) for key in ("a", "a", "b")])
    assert sorted(job.payload for job in claim(connection)) == ["a", "b"]
    assert sorted(job.payload for job in claim(connection, queue="other")) == ["a", "b"]


async def test_without_order_jobs_of_a_key_run_side_by_side(queue_url, connection):
    busy = Busy(0.05)
    worker = worker_with(busy, settings=quick(), retry=FullJitter(most=1))
    queue.enqueue_many_sync(connection, [NewJob("send", n, key="k") for n in range(8)])
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 8)
    assert busy.most_of_key > 1
