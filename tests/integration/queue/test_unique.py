"""Jobs of which there is one at a time, and jobs that a client may ask for again."""

import asyncio
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from headwater import queue
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.queue import NewJob, operate, work_statements
from tests.support.queue.workers import Busy, claim, keyed, running, states, worker_with
from tests.support.topics.subscribers import until

KEYS = pytest.mark.parametrize("name", ["unique", "idempotency_key"])


def finish(connection):
    return fetch_sync(connection, work_statements.finish(claim(connection), "done"))


@KEYS
def test_the_one_that_is_there_is_given_to_whoever_asks_again(connection, name):
    first = queue.enqueue_sync(connection, "send", 1, **keyed(name, "x"))
    assert queue.enqueue_sync(connection, "send", 2, **keyed(name, "x")) == first
    assert queue.enqueue_sync(connection, "send", 3, **keyed(name, "y")) != first
    assert queue.enqueue_sync(connection, "other", 4, **keyed(name, "x")) != first
    assert [job.payload for job in claim(connection)] == [1, 3]


@KEYS
def test_within_one_call_there_is_one_too(connection, name):
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n, **keyed(name, "x")) for n in range(3)])
    assert ids == [ids[0]] * 3
    assert [job.payload for job in claim(connection)] == [0]


def test_a_unique_job_that_is_claimed_is_there_still_and_one_that_is_done_is_not(connection):
    first = queue.enqueue_sync(connection, "send", unique="x")
    claim(connection)
    assert queue.enqueue_sync(connection, "send", unique="x") == first
    connection.execute("update headwater.job set lease_until = now() - interval '1 s'")
    finish(connection)
    assert queue.enqueue_sync(connection, "send", unique="x") != first


def test_a_client_that_asks_again_gets_its_job_also_when_that_is_done(connection):
    first = queue.enqueue_sync(connection, "send", idempotency_key="x")
    finish(connection)
    assert queue.enqueue_sync(connection, "send", idempotency_key="x") == first
    assert states(connection) == {first: "done"}


def test_a_client_that_asks_for_a_unique_job_of_another_gets_that_from_then_on(connection):
    first = queue.enqueue_sync(connection, "send", unique="x")
    assert queue.enqueue_sync(connection, "send", unique="x", idempotency_key="i") == first
    finish(connection)
    assert queue.enqueue_sync(connection, "send", unique="x", idempotency_key="i") == first
    assert states(connection) == {first: "done"}


async def is_waiting(connection):
    query = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%queue_enqueue_1%'"
    await until(lambda: connection.execute(query).fetchone())


@KEYS
async def test_two_transactions_with_the_same_key_make_one_job(connection, async_connection, application, name):
    first = queue.enqueue_sync(application, "send", 1, **keyed(name, "x"))
    second = asyncio.create_task(queue.enqueue(async_connection, "send", 2, **keyed(name, "x")))
    await is_waiting(connection)
    application.commit()
    assert await second == first
    assert [job.payload for job in claim(connection)] == [1]


@KEYS
async def test_if_the_first_transaction_is_rolled_back_the_second_one_enqueues(
    connection, async_connection, application, name
):
    first = queue.enqueue_sync(application, "send", 1, **keyed(name, "x"))
    second = asyncio.create_task(queue.enqueue(async_connection, "send", 2, **keyed(name, "x")))
    await is_waiting(connection)
    application.rollback()
    assert await second != first
    assert [job.payload for job in claim(connection)] == [2]


async def test_one_who_waits_for_a_unique_job_that_is_done_meanwhile_enqueues_another(
    connection, async_connection, application
):
    first = queue.enqueue_sync(connection, "send", 1, unique="x")
    (job,) = claim(connection)
    # It is finished in a transaction that is not committed yet.
    assert fetch_sync(application, work_statements.finish([job], "done")) == [first]
    second = asyncio.create_task(queue.enqueue(async_connection, "send", 2, unique="x"))
    await is_waiting(connection)
    application.commit()
    assert await second != first
    assert [job.payload for job in claim(connection)] == [2]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_one_that_was_given_up_is_left_to_whoever_enqueues_the_same_meanwhile(
    connection, queue_url, application, is_committed
):
    dead = queue.enqueue_sync(connection, "send", 1, unique="x")
    assert fetch_sync(connection, work_statements.give_up(claim(connection), ["broken"], ["ValueError"])) == [dead]
    queue.enqueue_sync(application, "send", 2, unique="x")

    def retry():
        with closing(connect_sync(queue_url)) as own:
            return operate.retry_jobs(own, [dead])

    retrying = asyncio.create_task(asyncio.to_thread(retry))
    query = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%queue_retry_1%'"
    await until(lambda: connection.execute(query).fetchone())
    if is_committed:
        application.commit()
    else:
        application.rollback()
    assert await retrying == ([] if is_committed else [dead])
    assert states(connection)[dead] == ("error" if is_committed else "scheduled")


@KEYS
async def test_a_transaction_that_may_not_see_the_other_one_fails_and_can_be_tried_again(
    queue_url, connection, application, name
):
    application.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    application.execute("select count(*) from headwater.job")
    first = queue.enqueue_sync(connection, "send", 1, **keyed(name, "x"))
    with pytest.raises(psycopg.errors.SerializationFailure):
        queue.enqueue_sync(application, "send", 2, **keyed(name, "x"))
    application.rollback()
    assert queue.enqueue_sync(application, "send", 2, **keyed(name, "x")) == first


async def test_many_who_ask_at_once_get_one_job_and_two_workers_do_it_once(queue_url, connection):
    busy = Busy()
    workers = [worker_with(busy) for _ in range(2)]

    async def ask(n):
        async with await psycopg.AsyncConnection.connect(queue_url) as own:
            return await queue.enqueue(own, "send", "once", idempotency_key="x", unique=f"u{n % 3}")

    async with running(*workers, url=queue_url):
        ids = set(await asyncio.gather(*(ask(n) for n in range(12))))
        await until(lambda: sum(worker.counts.done for worker in workers) == 1)
        assert len(set(await asyncio.gather(*(ask(n) for n in range(4)))) | ids) == 1
    assert busy.got == ["once"]


def test_a_unique_job_that_is_put_off_is_there_still(connection):
    first = queue.enqueue_sync(connection, "send", unique="x")
    waits = [timedelta(hours=1)]
    fetch_sync(connection, work_statements.postpone(claim(connection), waits, ["broken"], ["ValueError"]))
    assert queue.enqueue_sync(connection, "send", unique="x") == first
