"""Limits of queues: how many of a queue and of a key run at once, and how many may begin within a time, by two workers."""

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest

from headwater import queue
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.queue import NewJob, operate, work_statements
from headwater.queue.operate_statements import Limits
from tests.support.queue.workers import Busy, claim, count, end_leases, limit, quick, running, states, worker_with
from tests.support.topics.subscribers import until
from tests.support.waiting import eventually

SOON = timedelta(milliseconds=300)


def finish(connection, jobs):
    return fetch_sync(connection, work_statements.finish(jobs, "done"))


async def test_no_more_of_a_queue_run_at_once_than_its_limit(queue_url, connection):
    limit(connection, most_running=3)
    busy = Busy(0.01)
    workers = [worker_with(busy) for _ in range(2)]
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(60)])
    async with running(*workers, url=queue_url):
        await until(lambda: sum(worker.counts.done for worker in workers) == 60)
    assert sorted(busy.got) == list(range(60))
    assert 1 < busy.most <= 3


async def test_no_more_of_a_key_run_at_once_than_its_limit(queue_url, connection):
    limit(connection, most_running_per_key=2)
    busy = Busy(0.01)
    workers = [worker_with(busy) for _ in range(2)]
    queue.enqueue_many_sync(connection, [NewJob("send", n, key=f"k{n % 3}") for n in range(60)])
    async with running(*workers, url=queue_url):
        await until(lambda: sum(worker.counts.done for worker in workers) == 60)
    assert sorted(busy.got) == list(range(60))
    assert busy.most_of_key == 2
    assert busy.most > 2


def test_jobs_without_a_key_are_held_up_by_no_limit_of_keys(connection):
    limit(connection, most_running_per_key=1, rate_per_key=1, is_ordered=True)
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(5)])
    assert len(claim(connection)) == 5


def test_many_who_claim_at_once_pass_no_limit(queue_url, connection):
    limit(connection, most_running=5, most_running_per_key=2)
    queue.enqueue_many_sync(connection, [NewJob("send", n, key=f"k{n % 4}") for n in range(100)])
    begin = threading.Barrier(8)

    def take(_):
        with closing(connect_sync(queue_url)) as own:
            begin.wait()
            return claim(own, 3)

    with ThreadPoolExecutor(8) as pool:
        taken = [job for some in pool.map(take, range(8)) for job in some]
    assert len(taken) == len({job.id for job in taken}) == 5
    keys = [job.key for job in taken]
    assert max(keys.count(key) for key in keys) <= 2


@pytest.mark.parametrize("limits", [{"most_running": 2}, {"most_running_per_key": 2}])
def test_jobs_of_a_worker_that_is_gone_count_until_their_leases_end(connection, limits):
    limit(connection, **limits)
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n, key="k") for n in range(4)])
    assert len(claim(connection)) == 2
    assert claim(connection) == []
    end_leases(connection)
    # The same ones, which are the oldest, and no more.
    heirs = claim(connection)
    assert sorted(job.id for job in heirs) == ids[:2]
    assert finish(connection, heirs[:1]) == [heirs[0].id]
    assert [job.id for job in claim(connection)] == [ids[2]]


def test_a_cancelled_or_finished_job_counts_no_more(connection):
    limit(connection, most_running=1)
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(3)])
    for id in ids:
        (job,) = claim(connection)
        assert job.id == id
        finish(connection, [job])
    assert connection.execute("select count(*) from headwater.job_running").fetchone() == (0,)


async def test_no_more_of_a_queue_begin_within_a_time_than_its_rate(queue_url, connection):
    limit(connection, rate=10, rate_per=timedelta(seconds=2))
    busy = Busy()
    workers = [worker_with(busy) for _ in range(2)]
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(100)])
    began = time.monotonic()
    async with running(*workers, url=queue_url):
        await until(lambda: len(busy.got) >= 20)
        seconds, begun = time.monotonic() - began, len(busy.got)
    assert begun <= 10 + 5 * seconds + 1
    assert seconds > 1.5


def test_no_more_of_a_key_begin_within_a_time_than_its_rate(connection):
    limit(connection, rate_per_key=2, rate_per_key_per=timedelta(hours=1))
    queue.enqueue_many_sync(connection, [NewJob("send", n, key=f"k{n % 3}") for n in range(30)])
    jobs = claim(connection, 100)
    assert Counter(job.key for job in jobs) == {"k0": 2, "k1": 2, "k2": 2}
    finish(connection, jobs)
    assert claim(connection, 100) == []


def test_a_rate_comes_back_with_time_and_never_to_more_than_itself(connection):
    limit(connection, rate=4, rate_per=timedelta(hours=1), rate_per_key=4, rate_per_key_per=timedelta(hours=1))
    queue.enqueue_many_sync(connection, [NewJob("send", n, key="k") for n in range(30)])
    assert len(claim(connection, 3)) == 3
    assert len(claim(connection, 3)) == 1
    connection.execute("update headwater.queue_bucket set filled_at = filled_at - interval '31 minutes'")
    assert len(claim(connection)) == 2
    connection.execute("update headwater.queue_bucket set filled_at = filled_at - interval '1 day'")
    assert len(claim(connection)) == 4


def test_one_whose_clock_is_behind_wins_nothing_by_it(connection):
    """Who has waited for another to choose comes with an earlier time than that one."""
    limit(connection, rate=4, rate_per=timedelta(hours=1))
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(30)])
    take = "select headwater.queue_take_1('default', '', 1, 4, interval '1 hour', now() - %s::interval, true)"
    assert connection.execute(take, ["0"]).fetchone() == (1,)
    assert connection.execute(take, ["1 hour"]).fetchone() == (1,)
    assert connection.execute(take, ["0"]).fetchone() == (1,)
    assert connection.execute(take, ["0"]).fetchone() == (1,)
    assert connection.execute(take, ["0"]).fetchone() == (0,)


def test_what_a_rate_allows_and_another_limit_does_not_is_not_used_up(connection):
    limit(connection, rate=5, rate_per=timedelta(hours=1), most_running_per_key=1)
    queue.enqueue_many_sync(connection, [NewJob("send", n, key="k") for n in range(10)])
    for _ in range(5):
        jobs = claim(connection)
        assert len(jobs) == 1
        finish(connection, jobs)
    assert claim(connection) == []


def test_a_claim_that_is_rolled_back_takes_nothing_from_a_rate(connection):
    limit(connection, rate=2, rate_per=timedelta(hours=1), rate_per_key=2, rate_per_key_per=timedelta(hours=1))
    queue.enqueue_many_sync(connection, [NewJob("send", n, key="k") for n in range(5)])
    with pytest.raises(ZeroDivisionError):
        with connection.transaction():
            assert len(claim(connection)) == 2
            raise ZeroDivisionError
    assert len(claim(connection)) == 2
    assert claim(connection) == []


def test_one_key_at_its_limit_holds_up_no_other(connection):
    limit(connection, most_running_per_key=1)
    queue.enqueue_many_sync(connection, [NewJob("send", n, key="busy") for n in range(200)])
    queue.enqueue_many_sync(connection, [NewJob("send", n, key="calm") for n in range(3)])
    assert Counter(job.key for job in claim(connection)) == {"busy": 1, "calm": 1}


async def test_limits_that_change_while_workers_run_hold_from_then_on(queue_url, connection):
    busy = Busy(0.01)
    workers = [worker_with(busy) for _ in range(2)]
    async with running(*workers, url=queue_url):
        queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(50)])
        await until(lambda: sum(worker.counts.done for worker in workers) == 50)
        limit(connection, most_running=2)
        busy.most = 0
        queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(50)])
        await until(lambda: sum(worker.counts.done for worker in workers) == 100)
        assert busy.most <= 2
        limit(connection, is_paused=True)
        queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(50)])
        polls = [worker.counts.polls for worker in workers]
        await until(lambda: all(worker.counts.polls > seen + 2 for worker, seen in zip(workers, polls, strict=True)))
        assert count(connection, "scheduled") == 50
        connection.execute("delete from headwater.queue")
        await until(lambda: sum(worker.counts.done for worker in workers) == 150)


def while_it_waits(connection, commit, act):
    """What `act` gives that is begun before a commit and, unless it waits for it, has ended before it."""
    waiting = "select 1 from pg_locks where not granted and database = (select oid from pg_database where datname = %s)"
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        eventually(lambda: acting.done() or connection.execute(waiting, [connection.info.dbname]).fetchone())
        commit()
        return acting.result()


@pytest.mark.parametrize(
    "act", [operate.pause, lambda own, queue: operate.limit(own, Limits(queue, most_running=2))], ids=["pause", "limit"]
)
def test_a_claim_that_is_under_way_has_ended_when_a_queue_is_limited_or_paused(queue_url, connection, application, act):
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(5)])
    assert len(claim(application, 3)) == 3

    def change():
        with closing(connect_sync(queue_url)) as own:
            act(own, "default")
            return count(own, "claimed")

    assert while_it_waits(connection, application.commit, change) == 3
    # They count.
    assert claim(connection) == []


def test_a_lease_that_has_ended_is_lost_where_another_job_may_have_its_place(connection):
    limit(connection, most_running=1)
    queue.enqueue_sync(connection, "send", "first")
    (first,) = claim(connection)
    end_leases(connection)
    queue.enqueue_sync(connection, "send", "urgent", priority=9)
    (urgent,) = claim(connection)
    assert urgent.payload == "urgent"
    assert fetch_sync(connection, work_statements.renew([first, urgent], timedelta(minutes=1))) == [
        work_statements.Renewed(urgent.id, False)
    ]
    # It is nobody's, and comes again.
    assert finish(connection, [first]) == []
    assert finish(connection, [urgent]) == [urgent.id]
    assert [(job.id, job.attempt, job.unsettled) for job in claim(connection)] == [(first.id, 2, 1)]


def test_a_lease_that_is_being_renewed_has_not_ended_for_one_who_chooses(queue_url, connection, application):
    limit(connection, most_running=1)
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(2)])
    (job,) = claim(connection, 1, lease=timedelta(minutes=1))
    # Not committed yet, and by then the lease that others see is over.
    assert fetch_sync(application, work_statements.renew([job], timedelta(hours=1)))
    choose = """
        select headwater.queue_choose_1(queue, array['send'], 10, clock_timestamp() + interval '2 minutes')
          from headwater.queue
    """

    def choose_later():
        with closing(connect_sync(queue_url)) as own:
            return own.execute(choose).fetchone()

    assert while_it_waits(connection, application.commit, choose_later) == ([],)


@pytest.mark.parametrize("limits", [{"rate": 1, "rate_per": SOON}, {"rate_per_key": 1, "rate_per_key_per": SOON}])
async def test_a_rate_is_reached_however_seldom_is_polled(queue_url, connection, limits):
    limit(connection, **limits)
    worker = worker_with(Busy(), settings=quick(poll=timedelta(seconds=600)))
    queue.enqueue_many_sync(connection, [NewJob("send", n, key="k") for n in range(5)])
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 5)


async def test_a_rate_is_reached_while_those_before_are_in_hand(queue_url, connection):
    limit(connection, rate=1, rate_per=SOON)
    release = asyncio.Event()
    begun = []

    async def handle(job):
        begun.append(job.payload)
        await release.wait()

    worker = worker_with(handle, settings=quick(poll=timedelta(seconds=600)))
    async with running(worker, url=queue_url):
        # It knows of the limit from its first look.
        await until(lambda: worker.counts.sweeps == 1)
        queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(5)])
        await until(lambda: len(begun) == 5)
        release.set()


async def test_a_job_that_ends_lets_the_next_one_begin_without_waiting_for_a_poll(queue_url, connection):
    limit(connection, most_running=1)
    busy = Busy()
    worker = worker_with(busy, settings=quick(poll=timedelta(seconds=600)))
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(10)])
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 10)
    assert busy.most == 1


async def test_one_who_was_overtaken_and_one_who_claims_do_not_wait_for_each_other(queue_url, connection):
    """Both want the job and its mark in the limits; in another order they would never end."""
    limit(connection, most_running=50)
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(50)])

    def take_and_finish(_):
        with closing(connect_sync(queue_url)) as own:
            done = 0
            for _ in range(20):
                # Whose leases have ended when they are marked, for some of them.
                jobs = claim(own, 50, lease=timedelta(milliseconds=1))
                done += len(finish(own, jobs[:1]))
                fetch_sync(own, work_statements.release(jobs[1:]))
            return done

    done = await asyncio.gather(*(asyncio.to_thread(take_and_finish, n) for n in range(3)))
    assert sum(done) == sum(state == "done" for state in states(connection).values())
