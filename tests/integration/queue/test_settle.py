"""What becomes of jobs is written by whoever has them, and by nobody who had them before."""

import psycopg
import pytest

from headwater import queue
from headwater.postgres.statements import fetch_sync
from headwater.queue import FullJitter, NewJob, work_statements
from tests.support.queue.workers import SECOND, claim, end_leases, limit, one_row, quick, running, states, worker_with
from tests.support.topics.subscribers import until

# Outcomes of some jobs, of all that there are in a test, are written by one batch.
TOGETHER = quick(settle_after=SECOND / 5, concurrency=64)


def finish(connection, jobs, **options):
    return fetch_sync(connection, work_statements.finish(jobs, "done", **options))


def give_up(connection, jobs, **options):
    return fetch_sync(
        connection, work_statements.give_up(jobs, ["broken"] * len(jobs), ["ValueError"] * len(jobs), **options)
    )


def postpone(connection, jobs, **options):
    texts = ["broken"] * len(jobs), ["ValueError"] * len(jobs)
    return fetch_sync(connection, work_statements.postpone(jobs, [SECOND * 3600] * len(jobs), *texts, **options))


def release(connection, jobs, **options):
    return fetch_sync(connection, work_statements.release(jobs, **options))


def renew(connection, jobs):
    return [one.id for one in fetch_sync(connection, work_statements.renew(jobs, SECOND * 60))]


def retry(connection, *ids):
    return [id for (id,) in connection.execute("select headwater.queue_retry_1(%s)", [list(ids)]).fetchall()]


MARKS = pytest.mark.parametrize("mark", [finish, give_up, postpone, release])


def test_a_finished_job_is_kept_as_done(connection):
    id = queue.enqueue_sync(connection, "send", {"n": 1}, key="k", priority=2)
    assert finish(connection, claim(connection)) == [id]
    columns = "state kind payload key priority attempt worker error"
    assert one_row(connection, columns, id) == ("done", "send", {"n": 1}, "k", 2, 1, "by hand", None)
    assert connection.execute("select count(*) from headwater.job").fetchone() == (0,)


def test_a_job_that_is_given_up_is_kept_with_the_reason(connection):
    id = queue.enqueue_sync(connection, "send", {"n": 1}, unique="u")
    assert give_up(connection, claim(connection)) == [id]
    assert one_row(connection, "state payload attempt error error_class", id) == (
        "error",
        {"n": 1},
        1,
        "broken",
        "ValueError",
    )


def test_a_job_that_is_put_off_has_its_next_time_and_the_reason(connection):
    id = queue.enqueue_sync(connection, "send")
    assert postpone(connection, claim(connection)) == [id]
    assert one_row(connection, "state attempt error error_class worker", id) == (
        "scheduled",
        1,
        "broken",
        "ValueError",
        None,
    )
    (seconds,) = connection.execute("select extract(epoch from run_at - clock_timestamp()) from headwater.job").fetchone()
    assert 3500 < seconds <= 3600


def test_a_job_that_is_given_back_is_as_if_nobody_had_had_it(connection):
    id = queue.enqueue_sync(connection, "send")
    assert release(connection, claim(connection)) == [id]
    assert one_row(connection, "state attempt worker claimed_at lease_until", id) == ("scheduled", 0, None, None, None)
    (again,) = claim(connection)
    assert again.attempt == 1


@MARKS
def test_nobody_marks_what_another_has_claimed_since(connection, mark):
    id = queue.enqueue_sync(connection, "send")
    stale = claim(connection, worker="first")
    end_leases(connection)
    (live,) = claim(connection, worker="second")
    assert mark(connection, stale) == []
    assert renew(connection, stale) == []
    assert one_row(connection, "state worker attempt", id) == ("claimed", "second", 2)
    assert finish(connection, [live]) == [id]


@MARKS
@pytest.mark.parametrize("first", [finish, give_up, postpone, release])
def test_nobody_marks_what_is_marked(connection, first, mark):
    id = queue.enqueue_sync(connection, "send")
    jobs = claim(connection)
    assert first(connection, jobs) == [id]
    before = connection.execute("select * from headwater.job_state").fetchall()
    assert mark(connection, jobs) == []
    assert renew(connection, jobs) == []
    assert connection.execute("select * from headwater.job_state").fetchall() == before


@MARKS
def test_of_many_those_are_marked_that_are_ones_own(connection, mark):
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(10)])
    jobs = claim(connection)
    connection.execute("update headwater.job set epoch = epoch + 1 where id = any(%s)", [ids[::2]])
    assert sorted(mark(connection, jobs)) == ids[1::2]


@MARKS
def test_one_who_was_overtaken_does_not_make_room_for_more_than_the_limit(connection, mark):
    """What the other has goes on to count as running."""
    limit(connection, most_running=1)
    queue.enqueue_many_sync(connection, [NewJob("send", n, key="k") for n in range(2)])
    stale = claim(connection)
    end_leases(connection)
    live = claim(connection)
    assert [job.id for job in live] == [job.id for job in stale]
    assert mark(connection, stale) == []
    assert claim(connection) == []
    finish(connection, live)
    assert len(claim(connection)) == 1


def test_whoever_had_a_job_before_it_was_given_up_and_retried_may_not_mark_it(connection):
    id = queue.enqueue_sync(connection, "send")
    stale = claim(connection, worker="stalled")
    end_leases(connection)
    give_up(connection, claim(connection, worker="second"))
    assert retry(connection, id) == [id]
    live = claim(connection, worker="third")
    assert finish(connection, stale) == []
    assert one_row(connection, "state worker attempt", id) == ("claimed", "third", 1)
    assert finish(connection, live) == [id]


def test_a_dead_job_is_retried_as_a_new_one_with_its_old_id(connection):
    id = queue.enqueue_sync(connection, "send", {"n": 1}, key="k", priority=4)
    give_up(connection, claim(connection))
    assert retry(connection, id, id + 1) == [id]
    (job,) = claim(connection)
    assert (job.id, job.payload, job.key, job.priority, job.attempt) == (id, {"n": 1}, "k", 4, 1)
    assert retry(connection, id) == []


def test_a_dead_job_is_not_retried_while_its_unique_key_is_anothers(connection):
    dead = queue.enqueue_sync(connection, "send", unique="u")
    give_up(connection, claim(connection))
    live = queue.enqueue_sync(connection, "send", unique="u")
    assert live != dead
    assert retry(connection, dead) == []
    assert states(connection) == {dead: "error", live: "scheduled"}
    finish(connection, claim(connection))
    assert retry(connection, dead) == [dead]


def test_of_dead_jobs_with_the_same_unique_key_one_is_retried_and_none_is_lost(connection):
    dead = []
    for _ in range(3):
        dead.append(queue.enqueue_sync(connection, "send", unique="u"))
        give_up(connection, claim(connection))
    other = queue.enqueue_sync(connection, "send")
    give_up(connection, claim(connection))
    retried = retry(connection, *dead, other)
    assert len(retried) == 2
    assert other in retried
    assert sorted(states(connection)) == sorted([*dead, other])


@pytest.mark.parametrize("mark", [finish, give_up, postpone, release])
def test_after_a_lost_answer_nothing_is_told_of_what_was_marked_by_the_first_time(connection, mark):
    ids = queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(3)])
    jobs = claim(connection)
    assert sorted(mark(connection, jobs, is_again=True)) == ids
    assert sorted(mark(connection, jobs, is_again=True)) == ids


async def test_a_worker_writes_the_outcomes_of_many_jobs_together(queue_url, connection):
    async def handle(job):
        pass

    worker = worker_with(handle, settings=quick(settle_after=SECOND / 10, concurrency=64))
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(1000)])
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 1000)
    # What one statement has marked was marked by one transaction.
    (transactions,) = connection.execute("select count(distinct xmin::text) from headwater.job_done").fetchone()
    assert transactions <= 100


async def test_outcomes_of_all_sorts_are_written_in_one_batch(queue_url, connection):
    async def handle(job):
        match job.payload:
            case "retry":
                return queue.Retry("1h", "not yet")
            case "discard":
                return queue.Discard("never")
            case "fail":
                raise ValueError("broken")

    worker = worker_with(handle, settings=TOGETHER, retry=queue.FullJitter("1h", most=9))
    kinds = ["done", "retry", "discard", "fail"] * 10
    queue.enqueue_many_sync(connection, [NewJob("send", payload) for payload in kinds])
    async with running(worker, url=queue_url):
        await until(lambda: (worker.counts.done, worker.counts.dead, worker.counts.retried) == (10, 10, 20))
    rows = connection.execute("select distinct payload, state, error, error_class from headwater.job_state").fetchall()
    assert sorted(rows) == [
        ("discard", "error", "never", "Discard"),
        ("done", "done", None, None),
        ("fail", "scheduled", "broken", "ValueError"),
        ("retry", "scheduled", "not yet", "Retry"),
    ]


async def test_an_outcome_that_cannot_be_written_harms_no_other(queue_url, connection, caplog):
    """A rule of the application's own refuses one of them."""
    connection.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no such error here'; end $$"
    )
    connection.execute(
        "create trigger refuse before update of error on headwater.job for each row "
        "when (new.error = 'refused') execute function refuse()"
    )

    async def handle(job):
        if job.payload is not None:
            raise ValueError(job.payload)

    worker = worker_with(handle, settings=TOGETHER, retry=queue.FullJitter("1h", most=9))
    payloads = ["fine"] * 5 + ["refused"] + [None] * 5 + ["fine"] * 5
    ids = queue.enqueue_many_sync(connection, [NewJob("send", payload) for payload in payloads])
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 5 and worker.counts.retried == 10)
        await until(lambda: "could not be written" in caplog.text)
    assert [id for id, state in states(connection).items() if state == "claimed"] == [ids[5]]


@pytest.mark.parametrize("wait", ["999999999 days", "300000 days"])
async def test_a_wait_of_ages_is_cut_to_what_a_database_can_hold(queue_url, connection, wait):
    async def handle(job):
        return queue.Retry(wait)

    worker = worker_with(handle)
    id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.retried == 1)
    assert one_row(connection, "state attempt", id) == ("scheduled", 1)
    with pytest.raises(psycopg.errors.CheckViolation):
        connection.execute("update headwater.job set run_at = 'infinity'")


@pytest.mark.parametrize("mark", [finish, give_up])
def test_asked_again_what_another_one_has_settled_meanwhile_is_not_taken_for_ones_own(connection, mark):
    """The first time was not heard, or never left; by then the lease had ended, and another one has done it."""
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(2)])
    first = claim(connection)
    mark(connection, first[:1])
    end_leases(connection)
    second = claim(connection)
    finish(connection, second)
    assert mark(connection, first, is_again=True) == [first[0].id]


@pytest.mark.parametrize("mark", [postpone, release])
def test_asked_again_what_another_one_has_by_now_is_not_taken_for_ones_own(connection, mark):
    queue.enqueue_many_sync(connection, [NewJob("send", n) for n in range(2)])
    first = claim(connection)
    mark(connection, first[:1])
    end_leases(connection)
    claim(connection)
    assert [id for id in mark(connection, first, is_again=True) if id == first[1].id] == []


async def test_a_job_that_is_given_up_is_logged_with_the_reason_and_what_to_do(queue_url, connection, caplog):
    async def fail(job):
        raise ValueError("no such address")

    id = queue.enqueue_sync(connection, "send")
    worker = worker_with(fail, retry=FullJitter(most=1))
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.dead == 1)
    (record,) = [one for one in caplog.records if "given up" in one.message]
    assert record.levelname == "ERROR"
    assert (
        f"job {id} of kind send is given up in attempt 1: ValueError: no such address; `headwater queue show {id}`"
        in record.message
    )
    # And where it came from.
    assert "raise ValueError" in caplog.text
