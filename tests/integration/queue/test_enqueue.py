"""Enqueuing in the application's own transaction, and the bell that its commit rings."""

import asyncio
from contextlib import closing
from datetime import UTC, datetime

import psycopg
import pytest

from headwater import queue
from headwater.errors import JobError, SchemaError
from headwater.postgres.connect import connect_sync
from headwater.queue import NewJob
from tests.support.queue.workers import claim, one_row, soon, states


def rung(listener):
    """The queues that were rung for by now: notifications come in the order of their commits."""
    listener.execute("notify headwater_queue, 'last'")
    found: list[str] = []
    for notify in listener.notifies(timeout=10):
        if notify.payload == "last":
            return found
        found.append(notify.payload)
    raise AssertionError("the notification that was sent last did not come")


@pytest.fixture
def listener(queue_url):
    with closing(connect_sync(queue_url)) as connection:
        connection.execute("listen headwater_queue")
        yield connection


def test_a_job_is_there_as_it_was_given(connection):
    run_at = datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC)
    id = queue.enqueue_sync(
        connection, "send", {"to": "ä", "n": [1, 2.5, None]}, queue="mail", run_at=run_at, priority=3, key="k"
    )
    (job,) = claim(connection, queue="mail")
    assert (job.id, job.kind, job.payload, job.queue) == (id, "send", {"to": "ä", "n": [1, 2.5, None]}, "mail")
    assert (job.priority, job.run_at, job.key, job.attempt) == (3, run_at, "k", 1)


async def test_a_job_is_there_if_and_only_if_the_transaction_commits(connection, async_connection, application):
    with pytest.raises(ZeroDivisionError):
        async with async_connection.transaction():
            await queue.enqueue(async_connection, "send", 1)
            raise ZeroDivisionError
    queue.enqueue_sync(application, "send", 2)
    assert states(connection) == {}
    application.rollback()
    queue.enqueue_sync(application, "send", 3)
    application.commit()
    async with async_connection.transaction():
        await queue.enqueue_many(async_connection, [NewJob("send", 4)])
    assert [job.payload for job in claim(connection)] == [3, 4]


def test_the_ids_of_many_are_in_their_order(connection):
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(2500)])
    assert ids == sorted(set(ids))
    found = dict(connection.execute("select id, payload from headwater.job").fetchall())
    assert [found[id] for id in ids] == list(range(2500))


def test_jobs_with_keys_that_only_one_may_have_and_without_are_enqueued_together(connection):
    jobs = [NewJob("send", 0), NewJob("send", 1, unique="u"), NewJob("send", 2, idempotency_key="i"), NewJob("send", 3)]
    ids = queue.enqueue_many_sync(connection, jobs)
    assert ids == sorted(ids)
    again = queue.enqueue_many_sync(connection, jobs)
    assert (again[1], again[2]) == (ids[1], ids[2])
    assert [job.payload for job in claim(connection)] == [0, 1, 2, 3, 0, 3]


def test_none_are_enqueued_without_a_word_to_the_server(application):
    assert queue.enqueue_many_sync(application, []) == []
    assert application.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_bare_insert_enqueues_a_job(connection):
    connection.execute("insert into headwater.job (kind) values ('send')")
    (job,) = claim(connection)
    assert (job.payload, job.queue, job.priority) == (None, "default", 0)


@pytest.mark.parametrize("run_at", ["-infinity", "infinity", "0044-03-15 BC"])
def test_a_bare_insert_with_a_time_that_no_worker_can_read_is_refused(connection, run_at):
    with pytest.raises(psycopg.errors.CheckViolation):
        connection.execute("insert into headwater.job (kind, run_at) values ('send', %s)", [run_at])


async def test_a_commit_rings_once_for_each_queue(async_connection, listener):
    async with async_connection.transaction():
        for _ in range(5):
            await queue.enqueue(async_connection, "send")
            await queue.enqueue(async_connection, "send", queue="mail", unique="u")
        assert await asyncio.to_thread(rung, listener) == []
    assert sorted(await asyncio.to_thread(rung, listener)) == ["default", "mail"]


def test_what_is_rolled_back_rings_for_nobody(application, listener):
    queue.enqueue_sync(application, "send")
    application.rollback()
    assert rung(listener) == []


@pytest.mark.parametrize("keys", [{}, {"unique": "u"}, {"idempotency_key": "i"}])
def test_the_bell_can_be_switched_off(connection, listener, keys):
    queue.enqueue_sync(connection, "send", rings=False, **keys)
    assert rung(listener) == []
    assert len(claim(connection)) == 1


def test_a_delayed_job_is_not_due_before_its_time(connection):
    id = queue.enqueue_sync(connection, "send", run_at=soon(hours=1))
    assert claim(connection) == []
    assert one_row(connection, "state attempt", id) == ("scheduled", 0)


@pytest.mark.parametrize(
    "bad",
    [
        {"payload": object()},
        {"payload": float("nan")},
        {"payload": "\0"},
        {"payload": "\ud800"},
        {"payload": "x" * (1024 * 1024)},
        {"queue": "no spaces"},
        {"queue": "-dash"},
        {"queue": "x" * 101},
        {"queue": ""},
        {"kind": ""},
        {"kind": "a\0b"},
        {"priority": 10},
        {"run_at": datetime(2030, 1, 1)},
        {"run_at": datetime.min.replace(tzinfo=UTC)},
        {"key": ""},
        {"unique": "x" * 201},
    ],
)
async def test_what_cannot_be_enqueued_leaves_the_transaction_as_it_was(connection, async_connection, bad):
    good = NewJob("send", "good")
    async with async_connection.transaction():
        await queue.enqueue_many(async_connection, [good])
        with pytest.raises(JobError):
            await queue.enqueue_many(async_connection, [good, NewJob(**{"kind": "send", **bad})])
        await queue.enqueue_many(async_connection, [good])
    assert [job.payload for job in claim(connection)] == ["good", "good"]


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "emoji 😀", "\x7f\u2028", '"', "x" * (1024 * 1024 - 2)])
def test_text_comes_back_as_it_was(connection, text):
    queue.enqueue_sync(connection, "send", text)
    (job,) = claim(connection)
    assert job.payload == text


def test_the_tables_can_be_prepared_again(connection):
    queue.enqueue_sync(connection, "send")
    queue.prepare_queue(connection)
    queue.require_queue(connection)
    assert len(claim(connection)) == 1


def test_a_database_without_the_tables_is_told_of(database):
    with closing(connect_sync(database)) as connection, pytest.raises(SchemaError, match="headwater queue init"):
        queue.require_queue(connection)
