"""Jobs that fail: tried again by policy, at their next time, by whichever worker, and given up in the end."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from headwater import queue
from headwater.queue import FullJitter, NewJob, Retry
from tests.support.queue.workers import AT_ONCE, count, one_row, quick, running, worker_with
from tests.support.topics.subscribers import until

LISTENERS = "select pid from pg_stat_activity where application_name = 'headwater queue bell' and query ilike '%listen%'"


@dataclass(frozen=True)
class Exactly:
    """Always so long, however often."""

    after: timedelta

    def wait(self, attempts, chance):
        return self.after


async def fail(job):
    raise ConnectionError(f"attempt {job.attempt}")


async def test_a_failure_is_kept_with_its_class_and_the_next_time(queue_url, connection):
    worker = worker_with(fail, retry=Exactly(timedelta(hours=1)))
    id = queue.enqueue_sync(connection, "send")
    before = datetime.now(UTC)
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.retried == 1)
    state, attempt, error, error_class, run_at = one_row(connection, "state attempt error error_class run_at", id)
    assert (state, attempt, error, error_class) == ("scheduled", 1, "attempt 1", "ConnectionError")
    assert timedelta(minutes=59) < run_at - before < timedelta(minutes=61)


async def test_two_workers_share_the_attempts_of_a_job_and_there_are_no_more_than_its_policy_has(queue_url, connection):
    attempts = []

    async def handle(job):
        attempts.append((job.id, job.attempt))
        raise ConnectionError

    workers = [worker_with(handle, retry=AT_ONCE) for _ in range(2)]
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(20)])
    async with running(*workers, url=queue_url):
        await until(lambda: sum(worker.counts.dead for worker in workers) == 20)
    assert sorted(attempts) == sorted((id, attempt) for id in ids for attempt in (1, 2, 3))
    rows = connection.execute("select distinct attempt, error_class from headwater.job_dead").fetchall()
    assert rows == [(3, "ConnectionError")]


async def test_a_job_that_is_put_off_comes_again_at_its_time_however_seldom_is_polled(queue_url, connection):
    async def handle(job):
        if job.attempt == 1:
            return Retry("0.5s")
        return None

    worker = worker_with(handle, settings=quick(poll=timedelta(seconds=600)))
    queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 1)


async def test_a_job_that_succeeds_in_the_end_is_done(queue_url, connection):
    async def handle(job):
        if job.attempt < 3:
            raise ConnectionError

    worker = worker_with(handle, retry=AT_ONCE)
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 1)
    assert one_row(connection, "state attempt", id) == ("done", 3)
    assert (worker.counts.failed, worker.counts.retried) == (2, 2)


async def test_a_job_is_tried_once_if_its_policy_says_so(queue_url, connection):
    worker = worker_with(fail, retry=FullJitter(most=1))
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.dead == 1)
    assert one_row(connection, "state attempt error", id) == ("error", 1, "attempt 1")


async def test_dead_jobs_that_are_retried_are_done_without_waiting_for_a_poll(queue_url, connection):
    is_broken = True

    async def handle(job):
        if is_broken:
            raise ConnectionError
        assert job.attempt == 1

    worker = worker_with(handle, retry=FullJitter(most=1), settings=quick(poll=timedelta(seconds=600)))
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(5)])
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.dead == 5)
        is_broken = False
        await until(lambda: connection.execute(LISTENERS).fetchone())
        connection.execute("select headwater.queue_retry_1(%s)", [ids])
        await until(lambda: worker.counts.done == 5)
    assert count(connection, "error") == 0
