"""Jobs that are shared by many workers, and workers that are cancelled, replaced or stuck: each job is done, and once."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.queue import Job, NewJob, Worker, WorkerSettings, work_statements
from tests.support.servers.embedded import fresh_database
from tests.support.stories.queue_story import QUEUE, Crew, Load, enqueue_some, fetch, prepare_story, states
from tests.support.stories.queue_worker import KIND
from tests.support.waiting import eventually

JOBS = 4_000
REPEATS = 2
# How many jobs a worker does before it is cancelled.
SOME = 500

pytestmark = pytest.mark.timeout(300)

Note = Callable[[str, object], None]


@pytest.fixture
def story(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        prepare_story(url)
        yield url


def jobs(count: int) -> list[NewJob]:
    return [NewJob(KIND, {"number": number}, QUEUE) for number in range(count)]


@pytest.mark.parametrize("count", [2, 8])
async def test_workers_that_share_a_queue_do_each_job_once(story: str, record_property: Note, count: int) -> None:
    handled: Counter[int] = Counter()
    workers = [Worker(QUEUE) for _ in range(count)]

    async def handle(job: Job) -> None:
        handled[job.id] += 1
        await asyncio.sleep(0)

    for worker in workers:
        worker.handler(KIND)(handle)
    running = [asyncio.create_task(worker.run(story)) for worker in workers]
    ids = await asyncio.to_thread(enqueue_some, story, jobs(JOBS))
    await until(lambda: sum(worker.counts.done for worker in workers) >= JOBS, running)
    for worker in workers:
        worker.stop()
    await asyncio.gather(*running)
    found = states(story)
    shares = [worker.counts.done for worker in workers]
    twice = sum(times - 1 for times in handled.values())
    record_property(
        "counts",
        f"queue, {count} workers: {len(ids)} enqueued, {found.get('done', 0)} done ({' + '.join(map(str, shares))}), "
        f"never done {len(set(ids) - set(handled))}, done twice {twice}",
    )
    assert handled == Counter(ids)
    assert found == {"done": JOBS}
    assert sum(shares) == JOBS
    assert [worker.counts.suspected_duplicates for worker in workers] == [0] * count


async def until(probe: Callable[[], bool], running: "list[asyncio.Task[None]]", seconds: float = 120) -> None:
    """Wait for something of the doing of tasks, as long as all live."""
    deadline = time.monotonic() + seconds
    while not probe():
        done, _ = await asyncio.wait(running, timeout=0.02)
        assert not done, "a worker has ended by itself"
        assert time.monotonic() < deadline, f"not within {seconds} seconds"


def test_processes_that_share_a_queue_do_each_job_once(story: str, tmp_path: Path, record_property: Note) -> None:
    with Crew(story, tmp_path, size=2, settings={"latency_seconds": 0}) as crew:
        crew.wait_until_there()
        ids = enqueue_some(story, jobs(JOBS))
        crew.wait_until_idle(story)
        crew.stop()
    handled = Counter(call.id for call in crew.calls)
    shares = [one.counts["done"] for one in crew.everybody]
    twice = sum(times - 1 for times in handled.values())
    record_property(
        "counts",
        f"queue, 2 processes: {len(ids)} enqueued, {sum(shares)} done ({' + '.join(map(str, shares))}), "
        f"never done {len(set(ids) - set(handled))}, done twice {twice}",
    )
    assert handled == Counter(ids)
    assert states(story) == {"done": JOBS}
    assert (sum(shares), crew.count("suspected_duplicates")) == (JOBS, 0)


async def test_a_worker_that_is_cancelled_has_marked_what_it_has_done_and_gives_back_the_rest(
    story: str, record_property: Note
) -> None:
    ids = await asyncio.to_thread(enqueue_some, story, [NewJob(KIND, queue=QUEUE)] * JOBS)
    finished: Counter[int] = Counter()
    done: set[int] = set()
    released = 0
    for _ in range(REPEATS):
        worker, begun = await cancelled_in_the_middle(story, finished)
        released += worker.counts.released
        done = {id for (id,) in await asyncio.to_thread(fetch, story, "select id from headwater.job_done")}
        # All that was begun was finished, and is marked; nobody has the rest, and no attempt of it counts.
        assert begun <= set(finished)
        assert done == set(finished)
        found = Counter(await asyncio.to_thread(attempts, story))
        assert found == Counter({("done", 1): len(done), ("scheduled", 0): JOBS - len(done)})
        assert worker.counts.suspected_duplicates == 0
    twice = sum(times - 1 for times in finished.values())
    record_property(
        "counts",
        f"queue, cancelled {REPEATS} times after {SOME} jobs: {len(ids)} enqueued, {len(done)} done, "
        f"done and not marked {len(set(finished) - done)}, done twice {twice}, {released} given back unbegun, never done 0, "
        f"{JOBS - len(done)} still scheduled",
    )
    assert finished
    assert twice == 0


def attempts(url: str) -> dict[tuple[str, int], int]:
    """How many jobs there are of each state and number of attempts."""
    query = "select state, attempt, count(*) from headwater.job_state group by state, attempt"
    return {(state, attempt): count for state, attempt, count in fetch(url, query)}


async def cancelled_in_the_middle(url: str, finished: "Counter[int]") -> tuple[Worker, set[int]]:
    """A worker that was cancelled after some jobs, and what it had begun."""
    worker = Worker(QUEUE, WorkerSettings(concurrency=128))
    begun: set[int] = set()

    @worker.handler(KIND)
    async def handle(job: Job) -> None:
        begun.add(job.id)
        await asyncio.sleep(random.uniform(0, 0.05))
        finished[job.id] += 1

    wanted = finished.total() + SOME
    running = asyncio.create_task(worker.run(url))
    await until(lambda: finished.total() >= wanted, [running])
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()
    return worker, begun


def test_workers_that_are_replaced_one_after_the_other_do_each_job_once(
    story: str, tmp_path: Path, record_property: Note
) -> None:
    # So busy that each has some claimed that it has not begun when it is stopped.
    settings = {"concurrency": 8, "latency_seconds": 0.1}
    with Crew(story, tmp_path, size=3, settings=settings) as crew, Load(story) as load:
        crew.wait_until_busy()
        for one in list(crew.running):
            crew.replace(one)
            crew.wait_for_more(story, 100)
        crew.wait_until_busy()
        load.stop()
        crew.wait_until_idle(story)
        crew.stop()
    history = crew.history(story)
    released = crew.count("released")
    record_property("counts", f"queue, 3 workers replaced under load: {history.counts()}, {released} given back unbegun")
    assert history.violations() == []
    assert (history.never, history.twice, crew.count("suspected_duplicates")) == ([], {}, 0)


def test_a_process_that_stands_still_for_longer_than_its_lease_is_relieved_by_one_other(
    story: str, tmp_path: Path, record_property: Note
) -> None:
    settings = {"concurrency": 4, "lease": 3, "latency_seconds": 0.2}
    with Crew(story, tmp_path, size=3, settings=settings) as crew:
        crew.wait_until_there()
        ids = enqueue_some(story, jobs(200))
        crew.wait_until_busy()
        stuck = crew.running[0]
        stuck.process.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic_ns()
        # The others do also what it had.
        eventually(lambda: states(story) == {"done": len(ids)}, seconds=60)
        stuck.process.send_signal(signal.SIGCONT)
        crew.stop()
    # What it had begun and not marked, and nothing else.
    again = fetch(story, "select id from headwater.job_done where attempt > 1")
    relieved = sorted({call.id for call in stuck.calls} & {id for (id,) in again})
    twice = Counter(call.id for call in crew.calls if call.outcome == "done") - Counter(ids)
    late = [call.id for call in stuck.calls if call.began > stopped_at]
    suspected = stuck.counts["suspected_duplicates"]
    record_property(
        "counts",
        f"queue, 1 of 3 workers stopped beyond its lease: {len(ids)} enqueued, {states(story)['done']} done, never done "
        f"{len(ids) - states(story)['done']}, done twice {twice.total()} of {len(relieved)} that it had in hand, "
        f"{suspected} of its marks refused, {len(late)} begun after its lease",
    )
    assert late == []
    assert set(twice) <= set(relieved)
    assert suspected == len(relieved)
    assert sum(one.counts["suspected_duplicates"] for one in crew.everybody if one is not stuck) == 0
    require_one_relief(story, crew, relieved)


def require_one_relief(url: str, crew: Crew, ids: list[int]) -> None:
    """Jobs that one did not get done were begun once more, by one other."""
    for id in ids:
        calls = [call for call in crew.calls if call.id == id]
        assert [call.attempt for call in sorted(calls, key=lambda call: call.began)] == [1, 2]
        assert len({call.worker for call in calls}) == 2
    assert fetch(url, "select id from headwater.job_done where id = any(%s) and attempt <> 2", ids) == []


def test_a_handler_that_blocks_the_event_loop_is_relieved_by_one_other_and_keeps_no_job_from_others(
    story: str, tmp_path: Path, record_property: Note
) -> None:
    go_on = tmp_path / "go-on"
    # Long enough for a busy machine: no other job times out, and no other lease ends.
    settings = {"concurrency": 4, "lease": 6, "latency_seconds": 0.01, "timeout": "3s"}
    with Crew(story, tmp_path, size=3, settings=settings) as crew:
        crew.wait_until_there()
        # One blocks, and has some behind it that it has claimed as well.
        first = NewJob(KIND, {"blocks_until": str(go_on)}, QUEUE, priority=9)
        blocking, *rest = enqueue_some(story, [first, *jobs(100)])
        ids = [blocking, *rest]
        eventually(lambda: states(story) == {"done": len(ids)}, seconds=60)
        go_on.touch()
        (stuck,) = [one for one in crew.running if any((call.id, call.attempt) == (blocking, 1) for call in one.calls)]
        eventually(lambda: all(call.ended is not None for call in stuck.calls), seconds=60)
        crew.stop()
    twice = Counter(call.id for call in crew.calls if call.outcome == "done") - Counter(ids)
    record_property(
        "counts",
        f"queue, an event loop blocked beyond timeout, grace and lease, 3 workers: {len(ids)} enqueued, "
        f"{states(story)['done']} done, never done {len(ids) - states(story)['done']}, done twice {twice.total()}, "
        f"{stuck.counts['suspected_duplicates']} marks refused",
    )
    assert set(twice) <= {blocking}
    assert stuck.counts["suspected_duplicates"] == 1
    require_one_relief(story, crew, [blocking])


async def test_a_worker_whose_marks_cannot_be_written_does_not_go_on_for_ever(story: str, record_property: Note) -> None:
    settings = WorkerSettings(concurrency=8, claim_most=50, settle_most=20)
    worker, handled = Worker(QUEUE, settings), Counter[int]()

    @worker.handler(KIND)
    async def handle(job: Job) -> None:
        handled[job.id] += 1

    ids = await asyncio.to_thread(enqueue_some, story, jobs(2_000))
    async with await psycopg.AsyncConnection.connect(story) as connection:
        # As a disk that is full, or a lock of somebody else.
        await connection.execute("lock table headwater.job_done in share mode")
        running = asyncio.create_task(worker.run(story))
        await until(lambda: bool(handled), [running])
        # That it stops is told by time alone; what it may do meanwhile is a matter of milliseconds.
        await asyncio.wait([running], timeout=1)
        unmarked = len(handled)
    await until(lambda: worker.counts.done >= len(ids), [running])
    worker.stop()
    await running
    record_property("counts", f"queue, marks held up: {unmarked} of {len(ids)} done and not marked, done twice 0")
    # Claimed ahead, twice since there may be room for as many once more; in hand; and two batches of marks.
    assert unmarked <= 2 * 50 + 8 + 2 * 20
    assert handled == Counter(ids)


def test_a_late_mark_does_not_free_the_place_of_the_one_who_has_the_job_by_now(story: str) -> None:
    with closing(connect_sync(story)) as connection:
        connection.execute("insert into headwater.queue (name, most_running) values (%s, 1)", [QUEUE])
        enqueue_some(story, jobs(2))
        (late,) = claim(connection, lease_seconds=0.1)
        (taken,) = eventually(lambda: claim(connection))
        assert (late.id, late.attempt, taken.attempt) == (taken.id, 1, 2)
        for mark in (work_statements.finish([late], "done"), work_statements.release([late])):
            assert fetch_sync(connection, mark) == []
        assert claim(connection) == []
        assert fetch_sync(connection, work_statements.finish([taken], "done")) == [taken.id]
        assert len(claim(connection)) == 1


def claim(connection: Connection, lease_seconds: float = 30) -> list[Job]:
    lease, none = timedelta(seconds=lease_seconds), [None] * 10
    statement = work_statements.claim(QUEUE, [KIND], 2, lease, "by hand", sweeps=True, after_run_ats=none, after_ids=none)
    return fetch_sync(connection, statement)
