"""Who gets which job: each one once, the most urgent first, and at a price that does not depend on what is finished."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from headwater import queue
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.queue import NewJob, work_statements
from tests.support.queue.workers import (
    claim,
    end_leases,
    limit,
    old_snapshot,
    one_row,
    quick,
    running,
    soon,
    states,
    worker_with,
)
from tests.support.topics.subscribers import until

INDEX_READS = "select pg_stat_get_xact_tuples_returned('headwater.job_due'::regclass)"
UPDATES = (
    "select pg_stat_get_xact_tuples_updated('headwater.job'::regclass), "
    "pg_stat_get_xact_tuples_hot_updated('headwater.job'::regclass)"
)


def counted(connection, query, act):
    """What an act gives, and by how much it makes the figures of a query grow; within one transaction they are exact."""
    with connection.transaction():
        before = connection.execute(query).fetchone()
        result = act()
        after = connection.execute(query).fetchone()
    return result, [new - old for new, old in zip(after, before, strict=True)]


def payloads(jobs):
    return [job.payload for job in sorted(jobs, key=lambda job: (-job.priority, job.run_at, job.id))]


def test_the_most_urgent_and_then_the_oldest_are_claimed(connection):
    jobs = [NewJob("send", f"{priority}{n}", priority=priority) for n in "ab" for priority in (0, 9, 5)]
    queue.enqueue_many_sync(connection, jobs)
    assert payloads(claim(connection, 3)) == ["9a", "9b", "5a"]
    assert payloads(claim(connection, 10)) == ["5b", "0a", "0b"]


def test_what_is_due_for_longer_goes_first(connection):
    queue.enqueue_sync(connection, "send", "late", run_at=soon(minutes=-1))
    queue.enqueue_sync(connection, "send", "later", run_at=soon(minutes=-2))
    assert payloads(claim(connection, 1)) == ["later"]


def test_a_claimed_job_is_nobody_elses_until_its_lease_ends(connection):
    id = queue.enqueue_sync(connection, "send")
    (first,) = claim(connection, worker="first")
    assert claim(connection, worker="second") == []
    assert one_row(connection, "state attempt worker", id) == ("claimed", 1, "first")
    end_leases(connection)
    (second,) = claim(connection, worker="second")
    assert (second.id, second.attempt) == (id, 2)
    assert second.epoch > first.epoch
    assert one_row(connection, "state attempt worker", id) == ("claimed", 2, "second")


@pytest.mark.parametrize("limits", [{}, {"most_running": 1000}])
def test_an_expired_lease_is_claimed_by_exactly_one_of_many(queue_url, connection, limits):
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(20)])
    limit(connection, **limits)
    claim(connection, 20)
    end_leases(connection)
    begin = threading.Barrier(8)

    def take(_):
        with closing(connect_sync(queue_url)) as own:
            begin.wait()
            return [job.id for _ in range(4) for job in claim(own, 5)]

    with ThreadPoolExecutor(8) as pool:
        taken = [id for some in pool.map(take, range(8)) for id in some]
    assert sorted(taken) == ids
    assert connection.execute("select distinct attempt from headwater.job").fetchall() == [(2,)]


def test_many_who_claim_at_once_never_get_the_same(queue_url, connection):
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(400)])
    begin = threading.Barrier(4)

    def take(_):
        with closing(connect_sync(queue_url)) as own:
            begin.wait()
            got = []
            while some := claim(own, 7):
                got += [job.id for job in some]
            return got

    with ThreadPoolExecutor(4) as pool:
        taken = [id for some in pool.map(take, range(4)) for id in some]
    assert len(taken) == len(set(taken))
    # One who is skipped because another has it for a moment is found by the next.
    assert sorted(taken + [job.id for job in claim(connection, 400)]) == ids


def test_jobs_of_other_kinds_and_queues_are_left_alone(connection):
    queue.enqueue_sync(connection, "unknown")
    queue.enqueue_sync(connection, "send", queue="mail")
    assert claim(connection) == []
    assert set(states(connection).values()) == {"scheduled"}


def test_a_paused_queue_gives_out_nothing(connection):
    queue.enqueue_sync(connection, "send")
    limit(connection, is_paused=True)
    assert claim(connection) == []
    limit(connection, is_paused=False)
    assert len(claim(connection)) == 1


def test_a_job_whose_transaction_took_long_is_found_by_a_sweep(connection):
    queue.enqueue_sync(connection, "send", run_at=soon(seconds=-30))
    assert claim(connection, sweeps=False) == []
    assert len(claim(connection)) == 1


def test_a_claim_does_not_read_what_is_finished_while_an_old_transaction_is_open(queue_url, connection):
    connection.execute(
        "insert into headwater.job (kind, run_at) "
        "select 'send', clock_timestamp() - interval '1 hour' + n * interval '1 ms' from generate_series(1, 20000) as n"
    )
    with old_snapshot(queue_url):
        jobs = claim(connection, 20_000)
        assert len(fetch_sync(connection, work_statements.finish(jobs, "done"))) == 20_000
        fresh = queue.enqueue_sync(connection, "send")
        claimed, reads = counted(connection, INDEX_READS, lambda: claim(connection, 100, sweeps=False))
        assert [job.id for job in claimed] == [fresh]
        assert reads[0] <= 5
        # Which says something, since one who looks from the beginning reads them all.
        claimed, reads = counted(connection, INDEX_READS, lambda: claim(connection, 100))
        assert claimed == []
        assert reads[0] >= 20_000


def test_claims_and_renewals_leave_no_trace_in_an_index(connection):
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(20)])
    jobs, updates = counted(connection, UPDATES, lambda: claim(connection, 20))
    assert updates == [20, 20]
    renewed, updates = counted(
        connection, UPDATES, lambda: fetch_sync(connection, work_statements.renew(jobs, timedelta(seconds=30)))
    )
    assert len(renewed) == 20
    assert updates == [20, 20]


@pytest.mark.parametrize(
    "limits", [{}, {"is_ordered": True}, {"most_running": 3}, {"rate": 5}, {"rate_per_key": 5, "most_running_per_key": 2}]
)
def test_a_claim_that_finds_nothing_writes_nothing(connection, limits):
    limit(connection, **limits)
    queue.enqueue_sync(connection, "send", run_at=soon(hours=1), key="k")
    claim(connection)
    before = connection.execute("select pg_current_wal_insert_lsn()").fetchone()
    for sweeps in (True, False, True):
        assert claim(connection, sweeps=sweeps) == []
    assert connection.execute("select pg_current_wal_insert_lsn()").fetchone() == before


async def test_each_version_of_the_server_has_jobs_claimed_done_retried_and_given_up(any_queue_url):
    with closing(connect_sync(any_queue_url)) as connection:
        limit(connection, "ordered", is_ordered=True, most_running=2, rate=100, rate_per_key=100)
        tried = []

        async def handle(job):
            tried.append(job.payload)
            if job.payload == "bad" or (job.payload == "again" and job.attempt == 1):
                raise ValueError(job.payload)

        worker = worker_with(handle, queues=["default", "ordered"], retry=queue.FullJitter(base="0s", most=2))
        jobs = [
            NewJob("send", payload, queue=name, key="k") for payload in ("good", "again", "bad") for name in worker.queues
        ]
        queue.enqueue_many_sync(connection, jobs)
        queue.enqueue_sync(connection, "send", "good", unique="u", idempotency_key="i")
        async with running(worker, url=any_queue_url):
            await until(lambda: worker.counts.done == 5 and worker.counts.dead == 2)
        assert sorted(tried) == sorted(["good"] * 3 + ["again"] * 4 + ["bad"] * 4)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_workers_of_a_role_with_another_isolation_share_the_jobs(queue_url, connection, isolation):
    name = psycopg.conninfo.conninfo_to_dict(queue_url)["dbname"]
    connection.execute(f"alter database \"{name}\" set default_transaction_isolation = '{isolation}'")
    limit(connection, "limited", most_running=3)
    got = []

    async def handle(job):
        got.append(job.payload)

    workers = [worker_with(handle, queues=["default", "limited"], settings=quick(concurrency=4)) for _ in range(2)]
    jobs = [NewJob("send", n, queue="limited" if n % 2 else "default") for n in range(200)]
    async with running(*workers, url=queue_url):
        for part in range(0, 200, 20):
            queue.enqueue_many_sync(connection, jobs[part : part + 20])
        await until(lambda: sum(worker.counts.done for worker in workers) == 200)
    assert sorted(got) == list(range(200))
    assert sum(worker.counts.suspected_duplicates for worker in workers) == 0
