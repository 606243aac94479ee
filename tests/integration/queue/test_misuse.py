"""What is called with the wrong thing: JobError says what is right, and nothing is written."""

import functools

import pytest

from headwater import queue
from headwater.errors import JobError, SettingsError
from headwater.queue import Enqueuer, EnqueuerSettings, NewJob, Worker, WorkerSettings
from tests.support.queue.workers import Busy, states, worker_with


async def test_a_connection_of_the_other_kind_is_refused_with_the_function_for_it(connection, async_connection):
    with pytest.raises(JobError, match=r"enqueue_many needs a psycopg.AsyncConnection.*; use enqueue_many_sync with it"):
        await queue.enqueue(connection, "send")
    with pytest.raises(JobError, match=r"enqueue_many_sync needs a psycopg.Connection.*; use enqueue_many with it"):
        queue.enqueue_sync(async_connection, "send")
    with pytest.raises(JobError, match="give it psycopg's own connection"):
        await queue.enqueue("postgresql://", "send")  # type: ignore[arg-type]  # no connection, which is refused
    assert states(connection) == {}


@pytest.mark.parametrize("jobs", [NewJob("send"), None, 5])
def test_jobs_are_given_as_a_list(application, jobs):
    with pytest.raises(JobError, match=rf"jobs are given as a list, not as a {type(jobs).__name__}; write \[NewJob"):
        queue.enqueue_many_sync(application, jobs)
    assert application.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize("jobs", [["send"], [None], "send", [("send", 1)], [NewJob("send"), {"kind": "send"}]])
def test_each_of_them_is_a_job(application, jobs):
    with pytest.raises(JobError, match=r"a job is a headwater\.queue\.NewJob"):
        queue.enqueue_many_sync(application, jobs)
    assert states(application) == {}


def test_jobs_may_come_one_by_one(connection):
    assert len(queue.enqueue_many_sync(connection, (NewJob("send", n) for n in range(3)))) == 3


def test_a_kind_has_one_handler():
    worker = worker_with(Busy())
    with pytest.raises(JobError, match="there is a handler of 'send' already"):
        worker.handler("send")(Busy().__call__)


@pytest.mark.parametrize("kind", ["", None, 5])
def test_a_handler_is_for_a_kind(kind):
    with pytest.raises(JobError, match="a handler is for a kind of jobs"):
        worker_with(Busy(), kind=kind)


@pytest.mark.parametrize("function", [lambda job: None, None, print, functools.partial(print)])
def test_a_handler_is_an_async_function(function):
    with pytest.raises(JobError, match="is no async function"):
        Worker().handler("send")(function)


@pytest.mark.parametrize("timeout", ["0s", "soon", -5, None, "-1s"])
def test_a_handler_has_a_time(timeout):
    with pytest.raises(JobError, match="timeout of the handler"):
        worker_with(Busy(), timeout=timeout)


@pytest.mark.parametrize("queues", [[], ()])
def test_a_worker_has_a_queue(queues):
    with pytest.raises(JobError, match="at least one queue"):
        Worker(queues)


@pytest.mark.parametrize("queues", ["no spaces", ["fine", ""], [5], [None]])
def test_a_worker_is_for_queues_that_there_can_be(queues):
    with pytest.raises(JobError, match="cannot be a queue"):
        Worker(queues)


def test_a_worker_that_does_not_run_can_be_stopped():
    Worker().stop()


async def test_a_server_that_is_not_there_is_told_of(queue_url):
    with pytest.raises(SettingsError):
        await worker_with(Busy()).run("postgresql://user@host:port/database")
    with pytest.raises(SettingsError):
        await Enqueuer("postgresql://user@host:port/database").__aenter__()


def test_settings_are_of_their_kind():
    with pytest.raises(SettingsError):
        WorkerSettings(concurrency="64")  # type: ignore[arg-type]  # no number, which is refused
    with pytest.raises(SettingsError):
        EnqueuerSettings(batch_jobs=0)
