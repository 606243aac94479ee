"""Finished jobs: kept by day, until their days are dropped."""

from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from headwater import queue
from headwater.postgres.connect import connect_sync
from headwater.postgres.latest import latest_sync
from headwater.postgres.statements import fetch_sync
from headwater.queue import NewJob, operate, work_statements
from tests.support.queue.workers import Busy, claim, quick, running, states, worker_with
from tests.support.topics.subscribers import until


def days(connection):
    """The names of the days that there are, and how many rows each has."""
    names = connection.execute(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'headwater.job_done'::regclass order by 1"
    ).fetchall()
    return [name.removeprefix("headwater.job_done_") for (name,) in names]


def rows_of(connection):
    query = "select tableoid::regclass::text, count(*) from headwater.job_done group by 1"
    return {name.removeprefix("headwater.job_done_"): rows for name, rows in connection.execute(query).fetchall()}


def named(day):
    return f"{day:%Y%m%d}"


def keep(connection, kept):
    (dropped,) = fetch_sync(connection, work_statements.keep_days(kept))
    assert fetch_sync(connection, work_statements.forget(kept)) == [True]
    return dropped


def make_day(connection, day, rows):
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    name = f"headwater.job_done_{named(day)}"
    connection.execute(
        f"create table {name} partition of headwater.job_done for values from ('{begin}') to ('{begin + timedelta(days=1)}')"
    )
    connection.execute(
        "insert into headwater.job_done "
        "(id, queue, kind, payload, priority, run_at, created_at, attempt, outcome, finished_at) "
        "select n, 'default', 'send', 'null', 0, at, at, 1, 'done', at "
        "from generate_series(1, %s) as n, (select %s::timestamptz as at) as given",
        [rows, begin],
    )


def test_finished_jobs_are_in_the_partition_of_their_day(connection):
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(3)])
    fetch_sync(connection, work_statements.finish(claim(connection), "done"))
    today = datetime.now(UTC).date()
    assert sum(rows_of(connection).values()) == 3
    assert set(rows_of(connection)) <= {named(today), named(today - timedelta(days=1))}
    assert len([day for day in days(connection) if day != "rest"]) >= 8


def test_days_are_made_ahead_and_dropped_when_they_are_old(connection):
    today = datetime.now(UTC).date()
    for ago in (1, 6, 8, 30):
        make_day(connection, today - timedelta(days=ago), rows=5)
    assert keep(connection, timedelta(days=7)) == 2
    left = days(connection)
    assert all(named(today + timedelta(days=ahead)) in left for ahead in range(8))
    assert named(today - timedelta(days=6)) in left
    assert named(today - timedelta(days=8)) not in left
    assert rows_of(connection) == {named(today - timedelta(days=ago)): 5 for ago in (1, 6)}
    assert keep(connection, timedelta(days=7)) == 0


def test_jobs_that_finish_on_a_day_without_a_partition_are_kept_all_the_same(connection):
    today = datetime.now(UTC).date()
    for day in days(connection):
        if day != "rest":
            connection.execute(f"drop table headwater.job_done_{day}")
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(2)])
    fetch_sync(connection, work_statements.finish(claim(connection, 1), "done"))
    assert rows_of(connection) == {"rest": 1}
    # The day cannot have its own any more, and those after it can.
    keep(connection, timedelta(days=7))
    assert named(today + timedelta(days=2)) in days(connection)
    fetch_sync(connection, work_statements.finish(claim(connection, 1), "done"))
    assert states(connection) == dict.fromkeys(ids, "done")
    connection.execute("update headwater.job_done set finished_at = finished_at - interval '8 days'")
    keep(connection, timedelta(days=7))
    assert states(connection) == {}


def test_dead_jobs_are_dropped_by_no_time(connection):
    id = queue.enqueue_sync(connection, "send")
    fetch_sync(connection, work_statements.give_up(claim(connection), ["broken"], ["ValueError"]))
    connection.execute("update headwater.job_dead set finished_at = finished_at - interval '10 years'")
    keep(connection, timedelta(days=1))
    assert states(connection) == {id: "error"}


def test_keys_of_idempotency_last_as_long_as_finished_jobs(connection):
    first = queue.enqueue_sync(connection, "send", idempotency_key="x")
    fetch_sync(connection, work_statements.finish(claim(connection), "done"))
    connection.execute("update headwater.job_idempotency set created_at = created_at - interval '6 days'")
    keep(connection, timedelta(days=7))
    assert queue.enqueue_sync(connection, "send", idempotency_key="x") == first
    connection.execute("update headwater.job_idempotency set created_at = created_at - interval '2 days'")
    keep(connection, timedelta(days=7))
    assert queue.enqueue_sync(connection, "send", idempotency_key="x") != first


def test_keys_of_jobs_that_are_not_done_are_kept_however_old_they_are(connection):
    waits = queue.enqueue_sync(connection, "send", idempotency_key="a", run_at=datetime.now(UTC) + timedelta(days=30))
    dead = queue.enqueue_sync(connection, "send", idempotency_key="b")
    fetch_sync(connection, work_statements.give_up(claim(connection), ["broken"], ["ValueError"]))
    connection.execute("update headwater.job_idempotency set created_at = created_at - interval '20 days'")
    keep(connection, timedelta(days=7))
    assert queue.enqueue_sync(connection, "send", idempotency_key="a") == waits
    assert queue.enqueue_sync(connection, "send", idempotency_key="b") == dead


def test_what_is_left_of_rates_of_keys_is_forgotten_when_it_is_full_again(connection):
    connection.execute("insert into headwater.queue (name, rate_per_key) values ('default', 5)")
    connection.execute(
        "insert into headwater.queue (name, rate_per_key, rate_per_key_per) values ('slow', 5, interval '10 days')"
    )
    connection.execute(
        "insert into headwater.queue_bucket (queue, key, tokens, filled_at) "
        "select name, key, 0, now() - interval '3 days' from headwater.queue, (values ('a'), ('b')) as given (key) "
        "union all values ('default', 'new', 0::double precision, now())"
    )
    keep(connection, timedelta(days=7))
    left = connection.execute("select queue, key from headwater.queue_bucket order by 1, 2").fetchall()
    assert left == [("default", "new"), ("slow", "a"), ("slow", "b")]


async def test_a_worker_looks_after_the_days(queue_url, connection):
    today = datetime.now(UTC).date()
    make_day(connection, today - timedelta(days=30), rows=1)
    connection.execute(f"drop table headwater.job_done_{named(today + timedelta(days=7))}")
    worker = worker_with(Busy(), settings=quick(keep_done=timedelta(days=7)))
    async with running(worker, url=queue_url):
        await until(lambda: named(today - timedelta(days=30)) not in days(connection))
        await until(lambda: named(today + timedelta(days=7)) in days(connection))


async def test_a_worker_does_not_wait_for_a_day_that_somebody_reads(queue_url, connection, application, caplog):
    """Nor does anybody who finishes jobs meanwhile."""
    old = datetime.now(UTC).date() - timedelta(days=30)
    make_day(connection, old, rows=1)
    application.execute("select count(*) from headwater.job_done").fetchone()
    worker = worker_with(Busy(), settings=quick(maintain_every=timedelta(milliseconds=100)))
    async with running(worker, url=queue_url):
        queue.enqueue_sync(connection, "send")
        await until(lambda: worker.counts.done == 1)
        await until(lambda: "were not looked after, and are the next time" in caplog.text)
        queue.enqueue_sync(connection, "send")
        await until(lambda: worker.counts.done == 2)
        application.rollback()
        await until(lambda: named(old) not in days(connection))


async def test_two_workers_look_after_the_days_one_at_a_time(queue_url, connection, caplog):
    for ago in range(20, 30):
        make_day(connection, datetime.now(UTC).date() - timedelta(days=ago), rows=1)
    workers = [worker_with(Busy(), settings=quick(maintain_every=timedelta(milliseconds=20))) for _ in range(3)]
    async with running(*workers, url=queue_url):
        oldest = named(datetime.now(UTC).date() - timedelta(days=9))
        await until(lambda: min(days(connection)) >= oldest)
    assert "were not looked after" not in caplog.text


def test_a_client_that_stalls_while_it_drops_a_day_does_not_hold_up_those_who_finish_jobs(
    connection, queue_url, monkeypatch
):
    """As one that is stopped, or whose network is cut: the server ends its session, and its locks with it."""
    today = datetime.now(UTC).date()
    make_day(connection, today - timedelta(days=8), rows=5)
    queue.enqueue_sync(connection, "send", 1)
    jobs = claim(connection)
    connection.execute("set lock_timeout = '10s'")

    @contextmanager
    def stall_before_commit(client):
        with latest_sync(client):
            yield
            fetch_sync(connection, work_statements.finish(jobs, "done"))

    monkeypatch.setattr(operate, "latest_sync", stall_before_commit)
    monkeypatch.setattr("headwater.postgres.latest.IDLE_TIMEOUT", timedelta(seconds=1))
    with closing(connect_sync(queue_url)) as client, pytest.raises(psycopg.Error):
        operate.purge(client, "done", datetime.now(UTC) - timedelta(days=2))
    assert sum(rows_of(connection).values()) == 6
