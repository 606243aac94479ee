"""A worker from its start to its end: what wakes it, what it does with answers and failures, and how it stops."""

import asyncio
import logging
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headwater import queue
from headwater.errors import JobError, SchemaError, SourceError
from headwater.postgres.statements import execute_sync
from headwater.queue import Discard, Done, FullJitter, NewJob, Retry, Worker
from headwater.queue.operate_statements import grant_enqueuing, grant_working
from tests.support.queue.workers import (
    AT_ONCE,
    WARM,
    Busy,
    claim,
    count,
    end_leases,
    limit,
    one_row,
    quick,
    running,
    shift_of,
    soon,
    states,
    warmed,
    worker_with,
)
from tests.support.servers.tcp_proxy import Proxy
from tests.support.topics.subscribers import until
from tests.support.waiting import writes_nothing

# Only a bell, or a time that is known, wakes such a worker within the time of a test.
PATIENT = {"poll": timedelta(seconds=600)}
LISTENERS = "select pid from pg_stat_activity where application_name = 'headwater queue bell' and query ilike '%listen%'"


async def swept(worker):
    """When it has looked for the last time for long: after its start, and when it hears the bell from then on."""
    await until(lambda: worker.counts.sweeps >= 2)


async def test_a_job_that_is_enqueued_is_done(queue_url, connection):
    busy = Busy()
    worker = worker_with(busy)
    async with running(worker, url=queue_url):
        id = queue.enqueue_sync(connection, "send", {"n": 1})
        await until(lambda: worker.counts.done == 1)
    assert busy.got == [{"n": 1}]
    assert states(connection) == {id: "done"}


async def test_a_commit_wakes_a_worker_that_polls_almost_never(queue_url, connection):
    worker = worker_with(Busy(), settings=quick(**PATIENT))
    async with running(worker, url=queue_url):
        await until(lambda: connection.execute(LISTENERS).fetchone())
        await swept(worker)
        for n in range(3):
            queue.enqueue_sync(connection, "send", n)
            await until(lambda n=n: worker.counts.done == n + 1)
    assert worker.counts.sweeps == 2


@pytest.mark.parametrize("rings", [True, False])
async def test_polling_alone_is_right(queue_url, connection, rings):
    busy = Busy()
    worker = worker_with(busy, settings=quick(listens=False))
    async with running(worker, url=queue_url):
        for n in range(3):
            queue.enqueue_sync(connection, "send", n, rings=rings)
        await until(lambda: worker.counts.done == 3)
        assert not connection.execute(LISTENERS).fetchone()
    assert sorted(busy.got) == [0, 1, 2]


async def test_what_was_enqueued_without_a_bell_is_found_by_a_poll_of_one_who_listens(queue_url, connection):
    worker = worker_with(Busy())
    async with running(worker, url=queue_url):
        await swept(worker)
        queue.enqueue_sync(connection, "send", rings=False)
        await until(lambda: worker.counts.done == 1)


async def test_a_listener_whose_connection_is_killed_looks_after_the_reconnect_for_what_it_missed(queue_url, connection):
    worker = worker_with(Busy(), settings=quick(**PATIENT))
    async with running(worker, url=queue_url):
        await until(lambda: connection.execute(LISTENERS).fetchone())
        await swept(worker)
        with connection.transaction():
            # In one transaction, so that nobody listens when it commits.
            (pid,) = connection.execute(LISTENERS).fetchone()
            connection.execute("select pg_terminate_backend(%s, 10000)", [pid])
            queue.enqueue_sync(connection, "send")
        await until(lambda: worker.counts.done == 1)


@pytest.mark.parametrize("of_work", ["claims", "marks"])
async def test_a_worker_outlives_its_connections(queue_url, connection, of_work):
    busy = Busy()
    worker = worker_with(busy)
    kill = "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = 'headwater queue ' || %s"
    async with running(worker, url=queue_url):
        for n in range(4):
            queue.enqueue_sync(connection, "send", n)
            await until(lambda n=n: worker.counts.done == n + 1)
            connection.execute(kill, [of_work])
    assert sorted(busy.got) == [0, 1, 2, 3]


async def test_a_worker_outlives_a_server_that_is_away(queue_url, connection, caplog):
    busy = Busy()
    with Proxy(queue_url) as proxy:
        worker = worker_with(busy)
        async with running(worker, url=proxy.url):
            queue.enqueue_sync(connection, "send", 1)
            await until(lambda: worker.counts.done == 1)
            proxy.refuse = True
            proxy.cut()
            await until(lambda: not worker.counts.is_database_up)
            queue.enqueue_sync(connection, "send", 2)
            proxy.refuse = False
            await until(lambda: worker.counts.done == 2)
            assert worker.counts.is_database_up
    assert busy.got == [1, 2]
    assert "jobs cannot be claimed, again in" in caplog.text


@pytest.mark.parametrize("delay", [0.3, 1.5])
async def test_a_delayed_job_runs_at_its_time_however_seldom_is_polled(queue_url, connection, delay):
    worker = worker_with(Busy(), settings=quick(**PATIENT))
    async with running(worker, url=queue_url):
        await until(lambda: connection.execute(LISTENERS).fetchone())
        await swept(worker)
        id = queue.enqueue_sync(connection, "send", run_at=soon(seconds=delay))
        await until(lambda: worker.counts.done == 1)
    run_at, claimed_at = one_row(connection, "run_at claimed_at", id)
    assert run_at <= claimed_at < run_at + timedelta(seconds=5)


async def test_a_delayed_job_that_was_there_before_runs_at_its_time(queue_url, connection):
    queue.enqueue_sync(connection, "send", run_at=soon(seconds=1), rings=False)
    worker = worker_with(Busy(), settings=quick(**PATIENT))
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 1)


async def test_times_far_ahead_leave_no_timers_behind(queue_url, connection):
    queue.enqueue_sync(connection, "send", run_at=soon(days=1))
    worker = worker_with(Busy(), settings=quick(poll=timedelta(milliseconds=5)))
    timers = vars(asyncio.get_running_loop())["_scheduled"]
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.sweeps >= 10)
        claimer = shift_of(worker)._claimer
        assert [one for one in timers if getattr(one._callback, "__self__", None) is claimer] == []


async def test_an_idle_worker_writes_nothing_and_polls_no_more_than_once_in_its_time(queue_url, connection):
    poll = 0.25
    queues = ["default", "mail", "sms", "fax"]
    limit(connection, "sms", rate=10)
    limit(connection, "fax", most_running=3, is_ordered=True)
    queue.enqueue_sync(connection, "send", run_at=soon(hours=1))
    queue.enqueue_sync(connection, "unknown", queue="mail")
    worker = worker_with(Busy(), queues=queues, settings=quick(poll=timedelta(seconds=poll)))
    async with running(worker, url=queue_url):
        await until(lambda: connection.execute(LISTENERS).fetchone())
        await until(lambda: worker.counts.sweeps >= 3 * len(queues))
        polls, began = worker.counts.polls, time.monotonic()

        async def some_polls() -> None:
            wanted = worker.counts.polls + 6 * len(queues)
            await until(lambda: worker.counts.polls >= wanted)

        assert await writes_nothing(connection, some_polls)
        seconds, polled = time.monotonic() - began, worker.counts.polls - polls
    # One round may have been about to begin.
    assert polled <= (seconds / poll + 1.1) * len(queues)


@pytest.mark.parametrize("answer", [None, Done()])
async def test_a_handler_that_returns_done_or_nothing_is_done(queue_url, connection, answer):
    async def handle(job):
        return answer

    worker = worker_with(handle)
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 1)
    assert states(connection) == {id: "done"}


async def test_a_handler_that_discards_has_the_job_given_up_at_once(queue_url, connection):
    async def handle(job):
        return Discard("no such address\0\ud800")

    worker = worker_with(handle)
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.dead == 1)
    assert one_row(connection, "state attempt error error_class", id) == (
        "error",
        1,
        "no such address\N{REPLACEMENT CHARACTER}?",
        "Discard",
    )


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("not even that")

    __repr__ = __str__


class Mute:
    def __repr__(self):
        raise RuntimeError("not even that")


async def self_cancelled():
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


BAD = {
    "raises": "ValueError",
    "raises what cannot be shown": "Unspeakable",
    "exits": "SystemExit",
    "hangs": "Timeout",
    "times out by itself": "TimeoutError",
    "waits for what was cancelled": "CancelledError",
    "returns nonsense": "JobError",
    "returns what cannot be shown": "JobError",
}


async def misbehave(how):
    match how:
        case "raises":
            raise ValueError("broken\0" * 10_000)
        case "raises what cannot be shown":
            raise Unspeakable
        case "exits":
            raise SystemExit(3)
        case "hangs":
            await asyncio.sleep(600)
        case "times out by itself":
            raise TimeoutError
        case "waits for what was cancelled":
            await self_cancelled()
        case "returns nonsense":
            return "sent"
        case "returns what cannot be shown":
            return Mute()
    return None


class Telling(logging.Formatter):
    """Says of an exception what it says itself, as formatters of log services do."""

    def format(self, record):
        return f"{record.getMessage()} {record.exc_info[1] if record.exc_info else ''}"


async def test_a_log_that_has_each_error_speak_for_itself_is_spared_those_that_cannot(queue_url, connection, caplog):
    # Of this handler alone it is known that it raises what it fails with.
    caplog.handler.setFormatter(Telling())

    async def handle(_job):
        raise Unspeakable

    worker = worker_with(handle, retry=AT_ONCE)
    (id,) = queue.enqueue_many_sync(connection, [NewJob("send")])
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.dead == 1)
    assert one_row(connection, "attempt error_class", id) == (3, "Unspeakable")


@pytest.mark.parametrize("how", BAD)
async def test_a_handler_that_misbehaves_is_retried_by_policy_recorded_and_harms_no_other(queue_url, connection, how):
    async def handle(job):
        return await misbehave(job.payload)

    worker = worker_with(handle, timeout="0.1s", retry=AT_ONCE, settings=quick(concurrency=2))
    bad = queue.enqueue_many_sync(connection, [NewJob("send", how, priority=9)] * 3)
    good = queue.enqueue_many_sync(connection, [NewJob("send", "well")] * 5)
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.dead == 3 and worker.counts.done == 5)
    assert states(connection) == dict.fromkeys(bad, "error") | dict.fromkeys(good, "done")
    for id in bad:
        attempt, error_class, error = one_row(connection, "attempt error_class error", id)
        assert (attempt, error_class) == (3, BAD[how])
        assert len(error) <= 10_000
    assert worker.counts.failed == 9


INTERRUPTED = """
import asyncio, sys
from headwater.queue import Worker

worker = Worker()

@worker.handler("send")
async def send(job):
    raise KeyboardInterrupt

asyncio.run(worker.run(sys.argv[1]))
"""


def test_a_keyboard_interrupt_of_a_handler_ends_the_worker_and_the_job_comes_again(queue_url, connection):
    id = queue.enqueue_sync(connection, "send")
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, queue_url], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
    assert states(connection) == {id: "claimed"}
    end_leases(connection)
    assert [(job.id, job.attempt, job.unsettled) for job in claim(connection)] == [(id, 2, 1)]


@pytest.fixture
def role_url(queue_url, connection):
    """A role of its own that may log in and work."""
    name = f"worker_{connection.info.dbname}"
    connection.execute(f"create role {name} login password 'secret'")
    for grant in (grant_enqueuing(name), grant_working(name)):
        execute_sync(connection, grant)
    yield make_conninfo(queue_url, user=name, password="secret")
    connection.execute(f"drop owned by {name}")
    connection.execute(f"drop role {name}")


async def test_a_worker_that_may_not_log_in_any_more_ends_with_an_error_and_its_job_comes_again(
    role_url, connection, caplog
):
    name = conninfo_to_dict(role_url)["user"]
    ends = asyncio.Event()

    async def handle(_job):
        await ends.wait()

    worker = worker_with(handle)
    id = queue.enqueue_sync(connection, "send")
    task = asyncio.create_task(worker.run(role_url))
    await until(lambda: worker.counts.running == 1)
    connection.execute(f"alter role {name} nologin")
    connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [name])
    await until(lambda: not worker.counts.is_database_up or task.done())
    ends.set()
    with pytest.raises(SourceError, match=r"refused the connection.*not permitted to log in"):
        await task
    assert "outcomes of up to 1 jobs could not be written, and these are done again" in caplog.text
    assert states(connection) == {id: "claimed"}
    end_leases(connection)
    assert [(job.id, job.attempt) for job in claim(connection)] == [(id, 2)]


class Broken:
    def __init__(self, answer):
        self.answer = answer

    def wait(self, attempts, chance):
        if self.answer is None:
            raise RuntimeError("no idea")
        return self.answer


@pytest.mark.parametrize("answer", [None, 5.0, "soon"])
async def test_a_policy_that_misbehaves_has_the_job_given_up_and_harms_no_other(queue_url, connection, answer):
    async def handle(job):
        if job.payload:
            raise ValueError

    worker = worker_with(handle, retry=Broken(answer), settings=quick(concurrency=1))
    bad = queue.enqueue_many_sync(connection, [NewJob("send", True)] * 3)
    queue.enqueue_sync(connection, "send", False)
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.dead == 3 and worker.counts.done == 1)
    assert all(one_row(connection, "state", id) == ("error",) for id in bad)


async def test_a_handler_that_takes_no_notice_of_its_cancellation_does_not_confuse_the_next(queue_url, connection):
    outcomes = []

    async def handle(job):
        if job.payload == "stubborn":
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                return
        # Whoever has been cancelled before would see it here.
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(misbehave("raises"))
        except* ValueError:
            outcomes.append("caught")

    worker = worker_with(handle, timeout="0.2s", settings=quick(concurrency=1))
    stubborn = queue.enqueue_sync(connection, "send", "stubborn")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.running == 1)
        connection.execute("select headwater.queue_cancel_1(%s)", [[stubborn]])
        queue.enqueue_sync(connection, "send", "next")
        await until(lambda: len(outcomes) == 1 and worker.counts.done >= 1)
        queue.enqueue_sync(connection, "send", "next")
        await until(lambda: len(outcomes) == 2)
    assert worker.counts.failed == 0


@pytest.mark.parametrize("payload", ["1e5000", "[" * 5000 + "]" * 5000])
async def test_a_payload_that_python_cannot_read_is_given_up_and_harms_no_other(queue_url, connection, payload):
    busy = Busy()
    worker = worker_with(busy)
    connection.execute("insert into headwater.job (kind, payload) values ('send', %s::text::jsonb)", [payload])
    queue.enqueue_sync(connection, "send", "good")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 1 and worker.counts.dead == 1)
    assert busy.got == ["good"]
    ((error_class, error),) = connection.execute("select error_class, error from headwater.job_dead").fetchall()
    assert "payload" in error
    assert error_class in ("ValueError", "RecursionError")


async def test_a_job_of_an_unknown_kind_is_kept_told_of_and_done_when_a_handler_appears(queue_url, connection, caplog):
    id = queue.enqueue_sync(connection, "new", run_at=soon(minutes=-5))
    worker = worker_with(Busy())
    async with running(worker, url=queue_url):
        await until(lambda: "no handler here knows the kind" in caplog.text)
        assert worker.counts.overdue_seconds > 299
        assert one_row(connection, "state attempt", id) == ("scheduled", 0)
    assert "a job of kind new is due for" in caplog.text
    later = worker_with(Busy(), kind="new")
    async with running(later, url=queue_url):
        await until(lambda: later.counts.done == 1)


async def test_one_queue_that_is_overdue_is_not_hidden_by_others(queue_url, connection, caplog):
    for name in ("one", "two"):
        queue.enqueue_sync(connection, "new", queue=name, run_at=soon(minutes=-5))
    worker = worker_with(Busy(), queues=["one", "empty", "two", "default"])
    async with running(worker, url=queue_url):
        await until(lambda: "in queue one" in caplog.text and "in queue two" in caplog.text)
        await until(lambda: worker.counts.sweeps >= 12)
        assert worker.counts.overdue_seconds > 299


async def test_what_is_in_hand_is_finished_before_the_end_and_the_rest_is_given_back(queue_url, connection):
    go_on, begun = asyncio.Event(), []

    async def handle(job):
        begun.append(job.id)
        await go_on.wait()

    worker = worker_with(warmed(handle), settings=quick(concurrency=2, claim_most=8))
    ids = queue.enqueue_many_sync(connection, [*WARM, *(NewJob("send", n) for n in range(10))])[len(WARM) :]
    async with running(worker, url=queue_url) as (task,):
        await until(lambda: worker.counts.waiting > 0 and len(begun) == 2)
        worker.stop()
        await until(lambda: worker.counts.released > 0)
        assert not task.done()
        go_on.set()
        await task
    assert [id for id in ids if states(connection)[id] == "done"] == sorted(begun) == ids[:2]
    assert count(connection, "scheduled") == 8
    # They count for nothing: nobody has begun them.
    assert connection.execute("select distinct attempt, worker from headwater.job").fetchall() == [(0, None)]


async def test_all_that_was_done_is_marked_before_the_end(queue_url, connection):
    """Although outcomes are gathered for longer than the worker lives."""
    worker = worker_with(Busy(), settings=quick(settle_after=timedelta(hours=1)))
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(50)])
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.claimed == 50 and worker.counts.waiting == worker.counts.running == 0)
        assert worker.counts.done == 0
    assert worker.counts.done == count(connection, "done") == 50


async def test_a_handler_that_is_not_done_in_time_is_stopped_and_its_job_comes_again_at_once(queue_url, connection, caplog):
    async def handle(job):
        await asyncio.sleep(600)

    worker = worker_with(handle, settings=quick(stop_within=timedelta(milliseconds=100)))
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.running == 1)
    assert "1 jobs were stopped after 0.1 s; they are tried again" in caplog.text
    # It is no failure of the job, and however often that happens it is not given up.
    assert one_row(connection, "state attempt error_class", id) == ("scheduled", 0, "Stopped")
    heir = worker_with(Busy())
    async with running(heir, url=queue_url):
        await until(lambda: heir.counts.done == 1)


async def test_that_its_worker_was_stopped_does_not_hide_what_a_job_has_failed_with_before(queue_url, connection):
    begun = []

    async def handle(job):
        begun.append(job.attempt)
        if len(begun) == 1:
            raise ValueError("nobody is there")
        await asyncio.Event().wait()

    id = queue.enqueue_sync(connection, "send")
    # The second stop has nothing to add to the first.
    for times in (2, 3):
        worker = worker_with(handle, retry=AT_ONCE, settings=quick(stop_within=timedelta(milliseconds=100)))
        async with running(worker, url=queue_url):
            await until(lambda: len(begun) == times)  # noqa: B023 - it is over before the next
        said = "its worker was stopped before it was done; before that: nobody is there"
        assert one_row(connection, "attempt error_class error", id) == (1, "Stopped", said)


async def test_a_handler_that_never_ends_does_not_keep_a_worker_from_ending(queue_url, connection, monkeypatch):
    monkeypatch.setattr("headwater.queue.lanes._END_SECONDS", 0.1)
    set_free = asyncio.Event()

    async def handle(job):
        while not set_free.is_set():
            try:
                await set_free.wait()
            except asyncio.CancelledError:
                continue

    worker = worker_with(handle, settings=quick(stop_within=timedelta(milliseconds=100)))
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.running == 1)
    # Nobody knows what it does: others may have it when its lease ends.
    assert states(connection) == {id: "claimed"}
    set_free.set()


async def test_a_worker_that_is_cancelled_again_and_again_finishes_all_the_same(queue_url, connection):
    go_on = asyncio.Event()

    async def handle(job):
        await go_on.wait()

    worker = worker_with(handle)
    id = queue.enqueue_sync(connection, "send")
    task = asyncio.create_task(worker.run(queue_url))
    await until(lambda: worker.counts.running == 1)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert states(connection) == {id: "done"}


async def test_what_a_claim_brings_that_is_under_way_when_the_worker_stops_is_not_left_claimed(
    queue_url, connection, application
):
    limit(connection, most_running=10)
    queue.enqueue_sync(connection, "send")
    # Whoever chooses has to wait for this one.
    application.execute("select pg_advisory_xact_lock(hashtextextended('headwater.queue default', 0))")
    waiting = "select 1 from pg_stat_activity where application_name = 'headwater queue claims' and wait_event = 'advisory'"
    worker = worker_with(Busy())
    async with running(worker, url=queue_url):
        await until(lambda: connection.execute(waiting).fetchone())
        worker.stop()
        await asyncio.sleep(0)
        application.rollback()
    assert count(connection, "claimed") == 0
    assert connection.execute("select count(*) from headwater.job_running").fetchone() == (0,)


async def test_a_worker_can_be_run_again(queue_url, connection):
    busy = Busy()
    worker = worker_with(busy)
    for n in range(2):
        async with running(worker, url=queue_url):
            queue.enqueue_sync(connection, "send", n)
            await until(lambda n=n: len(busy.got) == n + 1)
    assert busy.got == [0, 1]
    assert worker.counts.done == 2


async def test_a_worker_runs_once_at_a_time(queue_url):
    worker = worker_with(Busy())
    async with running(worker, url=queue_url):
        with pytest.raises(JobError, match="runs already"):
            await worker.run(queue_url)


async def test_a_worker_has_no_more_in_hand_than_it_may(queue_url, connection):
    busy = Busy(0.005)
    worker = worker_with(busy, settings=quick(concurrency=3))
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(60)])
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 60)
    assert busy.most == 3
    assert sorted(busy.got) == list(range(60))


async def test_jobs_are_claimed_ahead_while_others_are_in_hand(queue_url, connection):
    go_on = asyncio.Event()

    async def handle(job):
        await go_on.wait()

    worker = worker_with(warmed(handle), settings=quick(concurrency=4, claim_most=8))
    queue.enqueue_many_sync(connection, [*WARM, *(NewJob("send", n) for n in range(100))])
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.running == 4 and worker.counts.waiting >= 2)
        # And no more than is good.
        assert worker.counts.waiting <= 8 + 4
        go_on.set()
        await until(lambda: worker.counts.done == len(WARM) + 100)


async def test_what_takes_long_is_left_to_a_worker_that_has_time(queue_url, connection):
    go_on, begun = asyncio.Event(), []

    async def handle(job):
        begun.append(job.payload)
        await go_on.wait()

    workers = [worker_with(handle, settings=quick(concurrency=2)) for _ in range(2)]
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(4)])
    async with running(*workers, url=queue_url):
        await until(lambda: len(begun) == 4)
        assert [worker.counts.running for worker in workers] == [2, 2]
        go_on.set()
        await until(lambda: sum(worker.counts.done for worker in workers) == 4)


async def test_two_workers_do_each_job_once(queue_url, connection):
    busy = Busy(0.001)
    workers = [worker_with(busy) for _ in range(2)]
    async with running(*workers, url=queue_url):
        for begin in range(0, 500, 50):
            queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(begin, begin + 50)])
        await until(lambda: sum(worker.counts.done for worker in workers) == 500)
    assert sorted(busy.got) == list(range(500))
    assert all(worker.counts.suspected_duplicates == 0 for worker in workers)


async def test_queues_take_turns(queue_url, connection):
    """A queue that is never empty keeps no other waiting."""
    done = []

    async def handle(job):
        done.append(job.queue)
        if job.queue == "busy":
            queue.enqueue_sync(connection, "send", queue="busy")

    worker = worker_with(handle, queues=["busy", "calm"], settings=quick(concurrency=2))
    queue.enqueue_many_sync(connection, [NewJob("send", queue="busy")] * 20)
    async with running(worker, url=queue_url):
        await until(lambda: len(done) > 20)
        queue.enqueue_sync(connection, "send", queue="calm")
        await until(lambda: "calm" in done)


async def test_urgent_jobs_are_done_first_by_two_workers_too(queue_url, connection):
    order = []

    async def handle(job):
        order.append(job.priority)
        await asyncio.sleep(0)

    queue.enqueue_many_sync(connection, [NewJob("send", priority=n % 10) for n in range(100)])
    workers = [worker_with(handle, settings=quick(concurrency=1, claim_most=1)) for _ in range(2)]
    async with running(*workers, url=queue_url):
        await until(lambda: len(order) == 100)
    # Each has one in hand and one ahead, and no more is out of order.
    assert all(abs(place // 10 - (9 - priority)) <= 1 for place, priority in enumerate(order))


async def test_a_backlog_of_low_priority_goes_on_when_a_higher_one_is_done(queue_url, connection):
    busy = Busy()
    worker = worker_with(busy, settings=quick(concurrency=4, claim_most=4, **PATIENT))
    old = soon(minutes=-10)
    queue.enqueue_many_sync(connection, [NewJob("send", n, priority=9 * (n % 2), run_at=old) for n in range(200)])
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 200)
    assert sorted(busy.got) == list(range(200))


async def test_metrics_tell_how_long_jobs_wait_and_take(queue_url, connection):
    worker = worker_with(Busy())
    connection.execute(
        "insert into headwater.job (kind, run_at, created_at) "
        "select 'send', at, at from (select clock_timestamp() - interval '20 s' as at) as given"
    )
    # It waits since it was enqueued, and not since it should have been.
    queue.enqueue_sync(connection, "send", run_at=soon(hours=-1))
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 2)
    assert 20 <= worker.counts.schedule_to_claim.total < 50
    assert 0 <= worker.counts.claim_to_done.total < 15
    assert worker.counts.schedule_to_done.total >= worker.counts.schedule_to_claim.total


async def test_a_database_without_a_queue_is_told_of_at_the_start(database):
    with pytest.raises(SchemaError, match="headwater queue init"):
        await worker_with(Busy()).run(database)


async def test_a_worker_without_handlers_is_refused(queue_url):
    with pytest.raises(JobError, match="no handlers"):
        await Worker().run(queue_url)


@pytest.mark.parametrize("payload", ["9" * 5000, "no number", "", "-1", "99999999999999999999"])
@pytest.mark.parametrize("channel", ["headwater_queue", "headwater_queue_cancel"])
async def test_notifications_of_others_harm_no_worker(queue_url, connection, channel, payload):
    worker = worker_with(Busy())
    async with running(worker, url=queue_url) as (task,):
        await until(lambda: connection.execute(LISTENERS).fetchone())
        connection.execute("select pg_notify(%s, %s)", [channel, payload])
        queue.enqueue_sync(connection, "send")
        await until(lambda: worker.counts.done == 1)
        assert not task.done()


async def test_jobs_that_fail_are_logged_with_their_facts(queue_url, connection, caplog):
    worker = worker_with(lambda job: misbehave("raises"), retry=FullJitter(most=1))
    id = queue.enqueue_sync(connection, "send")
    with caplog.at_level(logging.WARNING, logger="headwater.queue"):
        async with running(worker, url=queue_url):
            await until(lambda: worker.counts.dead == 1)
    (record,) = [record for record in caplog.records if "failed in attempt" in record.message]
    assert (record.job, record.kind, record.attempt) == (id, "send", 1)


async def test_a_retry_that_a_handler_asks_for_counts_as_an_attempt(queue_url, connection):
    attempts = []

    async def handle(job):
        attempts.append(job.attempt)
        return Retry("0s", "not yet")

    worker = worker_with(handle, retry=FullJitter(base="1h", most=3))
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.dead == 1)
    assert attempts == [1, 2, 3]
    assert one_row(connection, "state error error_class", id) == ("error", "not yet", "Retry")


async def test_jobs_that_are_overdue_behind_a_backlog_are_told_of(queue_url, connection, caplog):
    go_on = asyncio.Event()

    async def handle(job):
        await go_on.wait()

    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    queue.enqueue_many_sync(connection, [NewJob("send", n, run_at=hour_ago) for n in range(50)])
    worker = worker_with(handle, settings=quick(concurrency=2))
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.overdue_seconds > 3000)
        assert "is due for 36" in caplog.text
        go_on.set()
