"""Leases: what blocks an event loop does not end them, what goes on for too long does, and whoever lost one is told."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest

from headwater import queue
from headwater.postgres.statements import execute_sync
from headwater.queue import FullJitter, NewJob, lanes, work_statements
from tests.support.queue.workers import (
    WARM,
    Busy,
    Elsewhere,
    claim,
    count,
    end_leases,
    one_row,
    quick,
    running,
    shift_of,
    states,
    warmed,
    worker_with,
)
from tests.support.servers.tcp_proxy import Proxy
from tests.support.topics.subscribers import until
from tests.support.waiting import eventually

# Long enough for a busy machine: a worker that stalls for less than two thirds of it keeps its jobs.
LEASE = timedelta(seconds=5)
END_RENEWALS = (
    "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = 'headwater queue leases'"
)

# A worker that tells of the job that it has, and does it for ever.
WORKER = """
import asyncio, sys
from datetime import timedelta
from headwater.queue import Worker, WorkerSettings

worker = Worker(settings=WorkerSettings(concurrency=2, lease=timedelta(seconds=3)))

@worker.handler("send")
async def send(job):
    print(job.id, flush=True)
    await asyncio.Event().wait()

asyncio.run(worker.run(sys.argv[1]))
"""


async def test_a_job_that_takes_longer_than_its_lease_stays_with_its_worker(queue_url, connection):
    attempts = []

    def renewed():
        return sum(worker.counts.renewed for worker in workers)

    async def handle(job):
        attempts.append(job.attempt)
        # A lease is renewed after a third of it: four times is longer than the lease.
        await until(lambda: renewed() >= 4)

    workers = [worker_with(handle, settings=quick(lease=LEASE)) for _ in range(2)]
    id = queue.enqueue_sync(connection, "send", "long")
    async with running(*workers, url=queue_url):
        await until(lambda: sum(worker.counts.done for worker in workers) == 1)
    assert attempts == [1]
    assert one_row(connection, "state attempt", id) == ("done", 1)


def test_a_handler_that_blocks_the_event_loop_keeps_its_job_within_its_time(queue_url, connection):
    got, go_on = [], threading.Event()

    async def block(job):
        got.append(job.attempt)
        assert go_on.wait(15)

    one, other = (worker_with(block, settings=quick(lease=LEASE)) for _ in range(2))
    id = queue.enqueue_sync(connection, "send")
    with Elsewhere(one, queue_url), Elsewhere(other, queue_url):
        eventually(lambda: got)
        ((first,),) = connection.execute("select lease_until from headwater.job").fetchall()
        # Renewed, or claimed by the other worker, after the end of the first lease.
        is_renewed = "select 1 from headwater.job where lease_until > %s"
        eventually(lambda: connection.execute(is_renewed, [first + LEASE]).fetchone())
        go_on.set()
        eventually(lambda: one.counts.done + other.counts.done == 1)
    assert got == [1]
    assert one_row(connection, "state attempt", id) == ("done", 1)
    assert one.counts.suspected_duplicates + other.counts.suspected_duplicates == 0


def test_a_handler_that_blocks_beyond_its_time_is_taken_over_and_its_mark_is_refused(
    queue_url, connection, monkeypatch, caplog
):
    monkeypatch.setattr(lanes, "_GRACE", timedelta(milliseconds=100))
    attempts, taken_over = [], threading.Event()

    async def block(job):
        attempts.append(job.attempt)
        if job.attempt == 1:
            assert taken_over.wait(15)
        else:
            taken_over.set()

    workers = [worker_with(block, settings=quick(lease=LEASE), timeout="1s") for _ in range(2)]
    id = queue.enqueue_sync(connection, "send")
    with Elsewhere(workers[0], queue_url), Elsewhere(workers[1], queue_url):
        eventually(lambda: sum(worker.counts.done for worker in workers) == 1)
        eventually(lambda: sum(worker.counts.suspected_duplicates for worker in workers) == 1)
    assert attempts == [1, 2]
    assert one_row(connection, "state attempt", id) == ("done", 2)
    assert f"the outcome of job {id} of kind send is refused" in caplog.text


@pytest.mark.timeout(60)
def test_what_waits_behind_a_handler_that_blocks_the_event_loop_is_done_by_others(queue_url, connection):
    set_free = threading.Event()
    blocked: list[object] = []

    async def block(job):
        if not blocked:
            blocked.append(job.payload)
            assert set_free.wait(45)

    stuck = worker_with(block, settings=quick(lease=LEASE, concurrency=2))
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(2)])
    with Elsewhere(stuck, queue_url):
        # One in hand, and one that waits for its turn.
        eventually(lambda: blocked and stuck.counts.claimed == 2)
        other = worker_with(Busy(), settings=quick(lease=LEASE))
        with Elsewhere(other, queue_url):
            # Its lease is renewed until the event loop has been blocked for a lease, and ends a lease later.
            eventually(lambda: other.counts.done == 1, seconds=30)
            set_free.set()
            eventually(lambda: stuck.counts.done == 1)
    assert count(connection, "done") == 2
    assert stuck.counts.suspected_duplicates == 0


async def test_the_mark_of_one_who_was_overtaken_is_refused_counted_and_logged(queue_url, connection, caplog):
    go_on, begun = asyncio.Event(), []

    async def handle(job):
        begun.append(job.attempt)
        if job.attempt == 1:
            end_leases(connection)
            await go_on.wait()

    # It may also be taken over by the other lane of the same worker.
    workers = [worker_with(handle, settings=quick(concurrency=2)) for _ in range(2)]
    id = queue.enqueue_sync(connection, "send")
    async with running(*workers, url=queue_url):
        await until(lambda: sum(worker.counts.done for worker in workers) == 1)
        go_on.set()
        await until(lambda: sum(worker.counts.suspected_duplicates for worker in workers) == 1)
    assert begun == [1, 2]
    assert one_row(connection, "state attempt", id) == ("done", 2)
    (record,) = [record for record in caplog.records if "is refused" in record.message]
    assert (record.job, record.kind, record.levelname) == (id, "send", "WARNING")


async def test_a_handler_whose_job_is_anothers_is_stopped_when_its_lease_should_be_renewed(queue_url, connection):
    stopped = []

    async def handle(job):
        if job.attempt == 1:
            connection.execute("update headwater.job set epoch = epoch + 1, worker = 'another'")
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                stopped.append(job.id)
                raise

    worker = worker_with(handle, settings=quick(lease=LEASE))
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: stopped == [id])
        await until(lambda: worker.counts.suspected_duplicates == 1)
        assert worker.counts.leases_lost == 1


async def test_what_waits_in_a_worker_and_is_anothers_by_now_is_not_begun(queue_url, connection, caplog):
    go_on, begun = asyncio.Event(), []

    async def handle(job):
        begun.append(job.payload)
        await go_on.wait()

    worker = worker_with(warmed(handle), settings=quick(lease=LEASE, concurrency=1, claim_most=8))
    ids = queue.enqueue_many_sync(connection, [*WARM, *(NewJob("send", n) for n in range(2))])[len(WARM) :]
    async with running(worker, url=queue_url):
        await until(lambda: begun == [0] and worker.counts.waiting == 1)
        connection.execute("update headwater.job set epoch = epoch + 1, lease_until = 'infinity' where id = %s", [ids[1]])
        await until(lambda: worker.counts.leases_lost == 1)
        go_on.set()
        await until(lambda: worker.counts.done == len(WARM) + 1)
    assert begun == [0]
    assert {id: states(connection)[id] for id in ids} == {ids[0]: "done", ids[1]: "claimed"}
    # And it is forgotten.
    assert "were not written" not in caplog.text


def killed_with_two_jobs(url):
    """What a worker had in hand when it was killed with SIGKILL."""
    with subprocess.Popen([sys.executable, "-c", WORKER, url], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        begun = [int(worker.stdout.readline()) for _ in range(2)]
        worker.send_signal(signal.SIGKILL)
    return begun


async def test_jobs_of_a_worker_that_is_killed_are_done_by_another_when_their_leases_end(queue_url, connection):
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(2)])
    assert sorted(await asyncio.to_thread(killed_with_two_jobs, queue_url)) == ids
    workers = [worker_with(Busy()) for _ in range(2)]
    async with running(*workers, url=queue_url):
        await until(lambda: sum(worker.counts.done for worker in workers) == 2)
    assert [one_row(connection, "state attempt", id) for id in ids] == [("done", 2)] * 2


async def test_a_job_that_kills_its_workers_is_given_up_in_the_end_and_those_beside_it_are_not(queue_url, connection):
    """Of the one it is written down that it is begun, each time; of the others, which only waited there, it is not."""
    killer, _ = queue.enqueue_many_sync(connection, [NewJob("send", "kills"), NewJob("send", "beside")])
    for _ in range(8):
        for job in claim(connection):
            if job.id == killer and job.lost >= 3:
                execute_sync(connection, work_statements.begin(job))
        end_leases(connection)
    busy = Busy()
    worker = worker_with(busy)
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.dead == 1 and worker.counts.done == 1)
    assert busy.got == ["beside"]
    ((id, error_class, error),) = connection.execute("select id, error_class, error from headwater.job_dead").fetchall()
    assert (id, error_class) == (killer, "LeaseLost")
    assert "times and not settled: each time its worker died" in error


async def test_what_ended_with_its_worker_is_no_failure_of_the_job(queue_url, connection):
    id = queue.enqueue_sync(connection, "send")
    for _ in range(2):
        claim(connection)
        end_leases(connection)
    attempts = []

    async def fail(job):
        attempts.append(job.attempt)
        raise ValueError("no")

    worker = worker_with(fail, retry=FullJitter(base="1ms", most=2))
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.dead == 1)
    assert attempts == [3, 4]
    assert one_row(connection, "state attempt", id) == ("error", 4)


async def test_leases_are_renewed_over_a_new_connection_when_the_old_one_was_killed(queue_url, connection, caplog):
    go_on = asyncio.Event()

    async def handle(job):
        await go_on.wait()

    worker = worker_with(handle, settings=quick(lease=LEASE))
    queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.renewed >= 1)
        connection.execute(END_RENEWALS)
        renewed = worker.counts.renewed
        await until(lambda: worker.counts.renewed >= renewed + 2)
        go_on.set()
        await until(lambda: worker.counts.done == 1)
    assert worker.counts.leases_lost == 0


async def test_outcomes_that_cannot_be_written_for_two_leases_are_given_up_and_the_jobs_done_again(
    queue_url, connection, caplog
):
    attempts: list[int] = []
    with Proxy(queue_url) as proxy:

        async def handle(job):
            attempts.append(job.attempt)
            # The first call, whichever attempt it is: a claim that lapses before the handler begins is an attempt, too.
            if len(attempts) == 1:
                proxy.refuse = True
                proxy.cut()

        worker = worker_with(handle, settings=quick(lease=timedelta(seconds=2)))
        id = queue.enqueue_sync(connection, "send")
        async with running(worker, url=proxy.url):
            await until(lambda: "could not be written, and these are done again" in caplog.text)
            assert states(connection) == {id: "claimed"}
            proxy.refuse = False
            await until(lambda: worker.counts.done == 1)
    first, *again = attempts
    assert again
    assert first < again[0]
    assert one_row(connection, "state attempt", id) == ("done", again[-1])


async def test_a_lost_answer_to_a_mark_is_asked_for_again_and_no_duplicate_is_suspected(queue_url, connection):
    with Proxy(queue_url) as proxy:

        async def handle(job):
            # The server does as it is told, and nobody hears of it.
            proxy.mute = job.payload == "unheard of"

        worker = worker_with(handle, settings=quick(answer_within=timedelta(milliseconds=500), listens=False))
        async with running(worker, url=proxy.url):
            # For the first ones it connects, and prepares what it says.
            for n in range(1, 4):
                queue.enqueue_sync(connection, "send", "heard of")
                await until(lambda n=n: worker.counts.done == n)
            queue.enqueue_sync(connection, "send", "unheard of")
            await until(lambda: count(connection, "done") == 4)
            assert worker.counts.done == 3
            proxy.mute = False
            await until(lambda: worker.counts.done == 4)
    assert count(connection, "done") == 4
    assert worker.counts.suspected_duplicates == 0


async def test_leases_are_counted_from_before_the_claim(queue_url, connection):
    """A claim whose answer takes long leaves less of the lease, and the worker knows."""
    worker = worker_with(Busy(), settings=quick(lease=timedelta(seconds=5)))
    seen = []

    async def handle(job):
        holding = shift_of(worker)._held.find(job.id)
        assert holding is not None
        (until_,) = connection.execute("select lease_until from headwater.job").fetchone()
        (now,) = connection.execute("select clock_timestamp()").fetchone()
        seen.append(((until_ - now).total_seconds(), holding.renewed_at + 5 - time.monotonic()))

    worker = worker_with(handle, settings=quick(lease=timedelta(seconds=5)))
    queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 1)
    ((on_the_server, here),) = seen
    # The server's end of it is never before the worker's.
    assert here <= on_the_server + 0.001
