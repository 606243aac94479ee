"""Periodic jobs: at their times, by one of the workers that know of them; what was missed is made good for once."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from headwater import queue
from headwater.errors import JobError
from headwater.queue.handler import Periodic
from tests.support.queue.workers import Busy, claim, quick, running, worker_with
from tests.support.servers.tcp_proxy import Proxy
from tests.support.topics.subscribers import until

EVERY_MINUTE = "* * * * *"


def every(monkeypatch, seconds):
    """Have cron expressions mean times that a test can wait for."""

    def floor(time):
        return datetime.fromtimestamp(time.timestamp() // seconds * seconds, UTC)

    monkeypatch.setattr(Periodic, "last", lambda self, before: floor(before))
    monkeypatch.setattr(Periodic, "next", lambda self, after: floor(after) + timedelta(seconds=seconds))


def fired_at(connection):
    return [time for (time,) in connection.execute("select fired_at from headwater.job_cron order by name").fetchall()]


def periodic_worker(handle, expression=EVERY_MINUTE, **options):
    worker = worker_with(handle)
    worker.periodic(expression, "send", {"n": 1}, **options)
    return worker


async def test_two_workers_enqueue_a_job_once_at_each_of_its_times(queue_url, connection, monkeypatch):
    every(monkeypatch, 0.5)
    busy = Busy()
    workers = [periodic_worker(busy) for _ in range(2)]
    async with running(*workers, url=queue_url):
        await until(lambda: sum(worker.counts.done for worker in workers) >= 4)
        # Each of them has come to the last time as well.
        last = fired_at(connection)
        await until(lambda: fired_at(connection) > last)
    fired = sum(worker.counts.periodic for worker in workers)
    (enqueued,) = connection.execute("select count(*) from headwater.job_state").fetchone()
    assert enqueued == fired
    times = [time for (time,) in connection.execute("select created_at from headwater.job_state order by 1").fetchall()]
    slots = [time.timestamp() // 0.5 for time in times]
    assert len(set(slots)) >= fired - 1
    assert all(payload == {"n": 1} for payload in busy.got)


async def test_what_was_missed_while_no_worker_was_there_is_made_good_for_once(queue_url, connection):
    first = periodic_worker(Busy(), "0 3 * * *")
    async with running(first, url=queue_url):
        await until(lambda: first.counts.sweeps > 0)
    assert claim(connection) == []
    connection.execute("update headwater.job_cron set fired_at = fired_at - interval '10 days'")
    busy = Busy()
    workers = [periodic_worker(busy, "0 3 * * *") for _ in range(2)]
    async with running(*workers, url=queue_url):
        await until(lambda: sum(worker.counts.done for worker in workers) == 1)
    assert sum(worker.counts.periodic for worker in workers) == 1
    assert len(busy.got) == 1
    (time,) = fired_at(connection)
    assert (time.hour, time.minute) == (3, 0)
    assert timedelta(0) <= datetime.now(UTC) - time < timedelta(days=1, minutes=1)


async def test_a_job_that_is_new_begins_with_its_next_time(queue_url, connection):
    worker = periodic_worker(Busy(), "0 3 * * *")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.sweeps > 1)
    assert worker.counts.periodic == 0
    ((time,),) = connection.execute("select fired_at from headwater.job_cron").fetchall()
    assert datetime.now(UTC) - time < timedelta(minutes=1)


async def test_a_time_that_comes_while_the_server_is_away_is_made_good(queue_url, connection, monkeypatch, caplog):
    every(monkeypatch, 1)
    with Proxy(queue_url) as proxy:
        worker = periodic_worker(Busy())
        async with running(worker, url=proxy.url):
            await until(lambda: worker.counts.done >= 1)
            proxy.refuse = True
            proxy.cut()
            await until(lambda: "could not be enqueued, and is tried again" in caplog.text)
            done = worker.counts.done
            proxy.refuse = False
            await until(lambda: worker.counts.done > done)


async def test_jobs_of_several_expressions_are_enqueued_each_at_its_own(queue_url, connection):
    worker = worker_with(Busy(), queues=["default", "nightly"])
    worker.periodic("0 3 * * *", "send", "a")
    worker.periodic("0 3 * * *", "send", "b", queue="nightly", priority=7)
    worker.periodic("0 4 * * *", "send", "c", zone="Asia/Tokyo", name="tea")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.sweeps > 0)
    names = [name for (name,) in connection.execute("select name from headwater.job_cron order by name").fetchall()]
    assert names == ["default/send/0 3 * * */UTC", "nightly/send/0 3 * * */UTC", "tea"]
    connection.execute("update headwater.job_cron set fired_at = fired_at - interval '2 days' where name like 'nightly%'")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 1)
    rows = connection.execute("select queue, payload, priority from headwater.job_done").fetchall()
    assert rows == [("nightly", "b", 7)]


async def test_a_worker_that_only_sleeps_until_the_next_time_ends_at_once(queue_url):
    worker = periodic_worker(Busy(), "0 3 * * *")
    async with running(worker, url=queue_url) as (task,):
        await until(lambda: worker.counts.sweeps > 0)
        worker.stop()
        await asyncio.wait_for(task, 10)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("every day", "send"), "is no cron expression"),
        (("61 * * * *", "send"), "is no cron expression"),
        ((5, "send"), "is no cron expression"),
        (("0 0 31 2 *", "send"), "is no cron expression"),
        ((EVERY_MINUTE, ""), "the kind of a job"),
        ((EVERY_MINUTE, "send", object()), "cannot be written as JSON"),
    ],
)
def test_what_cannot_be_periodic_is_refused_before_the_worker_runs(wrong, said):
    with pytest.raises(JobError, match=said):
        worker_with(Busy()).periodic(*wrong)


@pytest.mark.parametrize("zone", ["Middle/Earth", "", 5, "../etc/passwd"])
def test_a_zone_that_is_none_is_refused(zone):
    with pytest.raises(JobError, match="is no time zone"):
        worker_with(Busy()).periodic(EVERY_MINUTE, "send", zone=zone)


def test_two_periodic_jobs_of_the_same_name_are_refused():
    worker = periodic_worker(Busy())
    with pytest.raises(JobError, match="already"):
        worker.periodic(EVERY_MINUTE, "send")
    worker.periodic(EVERY_MINUTE, "send", name="another")
    assert worker.settings == quick()


def test_a_queue_that_cannot_be_one_is_refused():
    with pytest.raises(JobError, match="cannot be a queue"):
        worker_with(Busy()).periodic(EVERY_MINUTE, "send", queue="no spaces")
    assert queue.NewJob("send").queue == "default"
