"""Workers that are killed, connections that are cut and a database that is restarted under load: never done 0, done twice
counted and explained; and a run with all of it at once, judged by the record of it.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.queue import NewJob
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import fresh_database, postgres_settings
from tests.support.servers.tcp_proxy import Proxy
from tests.support.stories.queue_faults import run_with_faults
from tests.support.stories.queue_history import Enqueued, History
from tests.support.stories.queue_story import (
    CONNECTIONS,
    QUEUE,
    Crew,
    Load,
    count_ended,
    cut,
    enqueue_some,
    fetch,
    finals_of,
    prepare_story,
)
from tests.support.stories.queue_worker import KIND
from tests.support.waiting import eventually

# Where a worker dies: with jobs that it has not begun, with some that are done and not marked, and with some in hand.
POINTS = ("queue.claimed=kill@2", "queue.handled=kill@2", "queue.lease_renewal=kill")
CUTS = 2
# How many jobs are done between two faults.
SOME = 100
# Of the faults and of what writers do.
SEED = 16

pytestmark = pytest.mark.timeout(300)

Note = Callable[[str, object], None]


@pytest.fixture
def story(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        prepare_story(url)
        yield url


def test_a_worker_that_is_killed_in_mid_batch_repeats_what_it_had_not_marked_and_nothing_else(
    story: str, tmp_path: Path, record_property: Note
) -> None:
    points = Failpoints(tmp_path, ", ".join(POINTS))
    sizes = {"concurrency": 8, "claim_most": 50, "settle_most": 50}
    settings = {"lease": 3, "settle_after": 0.1, "effects_url": story, **sizes}
    # Some jobs take so long that their leases have to be renewed.
    crew = Crew(story, tmp_path, settings=settings, environment=points.environment)
    with crew, Load(story, slow_seconds=2) as load:
        for _ in POINTS:
            eventually(crew.replace_killed, seconds=120)
        crew.wait_for_more(story, SOME)
        load.stop()
        crew.wait_until_idle(story)
        crew.stop()
    history = crew.history(story)
    effects = fetch(story, "select job, worker from effect order by place")
    killed = {one.process.pid for one in crew.everybody if one.name in crew.gone}
    again = repeats(effects)
    record_property(
        "counts",
        f"queue, SIGKILL of a worker at {', '.join(sorted(points.fired))}: {history.counts()}, effects that came again "
        f"{sum(map(len, again.values()))}, all of those killed",
    )
    assert points.fired == {point.partition("=")[0] for point in POINTS}
    assert history.violations() == []
    assert {job for job, _ in effects} == set(history.committed)
    # The one that died before its marks had done something.
    assert again
    # At most what it had in hand, two batches of marks, and what it had claimed ahead meanwhile.
    assert set(again) <= killed
    assert all(len(jobs) <= 8 + 2 * 50 + 2 * 50 for jobs in again.values())
    assert crew.count("suspected_duplicates") == 0


def repeats(effects: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Jobs whose effect came again, by the worker of the effect before."""
    last: dict[int, int] = {}
    found = defaultdict(list)
    for job, worker in effects:
        if job in last:
            found[last[job]].append(job)
        last[job] = worker
    return found


def test_connections_that_are_cut_have_no_job_done_twice(story: str, tmp_path: Path, record_property: Note) -> None:
    # Some jobs take so long that their leases have to be renewed.
    settings = {"lease": 5, "latency_seconds": 0.05}
    with Crew(story, tmp_path, settings=settings) as crew, Load(story, slow_seconds=4) as load:
        crew.wait_until_busy()
        found = dict.fromkeys(CONNECTIONS, 0)
        for _ in range(CUTS):
            for name in CONNECTIONS:
                # The one for leases is opened when the first is renewed; the one aside is there at times.
                is_sure = name != CONNECTIONS[-1]
                found[name] += eventually(partial(cut, story, [name]), seconds=60) if is_sure else cut(story, [name])
                crew.wait_for_more(story, 50)
        load.stop()
        crew.wait_until_idle(story)
        crew.stop()
    history = crew.history(story)
    cuts = ", ".join(f"{count} {name.removeprefix('headwater queue ')}" for name, count in found.items())
    record_property("counts", f"queue, connections cut ({cuts}): {require_once(history, crew)}")


def require_once(history: History, crew: Crew) -> str:
    """What was counted; connections and servers that go away are no reason to do a job twice, or to say so."""
    assert (history.never, history.twice, crew.count("suspected_duplicates")) == ([], {}, 0), history.counts()
    assert [one for one in history.violations() if one.kind != "attempts"] == []
    begun, attempts = len(history.handled), sum(one.attempt for one in history.finals)
    return f"{history.counts()}, {attempts - begun} claimed whose claim was lost"


def test_marks_whose_answers_are_lost_are_neither_repeated_nor_taken_for_duplicates(
    story: str, tmp_path: Path, record_property: Note
) -> None:
    ids: list[int] = []
    unheard = 0
    with Proxy(story) as proxy, Crew(proxy.url, tmp_path, size=1) as crew:
        for number in range(CUTS):
            # The first marks of a connection take more than one answer.
            for _ in range(3):
                ids += enqueue_some(story, [NewJob(KIND, {}, QUEUE)])
                crew.wait_until_idle(story)
            go_on = tmp_path / f"go-on-{number}"
            ids += enqueue_some(story, [NewJob(KIND, {"waits_until": str(go_on)}, QUEUE)] * 20)
            crew.wait(partial(has_begun, crew, len(ids)))
            # They end when the worker hears no answers any more, and so not that they are marked.
            proxy.mute, before = True, count_ended(story)
            go_on.touch()
            crew.wait(partial(has_ended, story, before + 1))
            proxy.cut()
            unheard += count_ended(story) - before
            proxy.mute = False
            crew.wait_until_idle(story)
        crew.stop()
    history = History([Enqueued(id) for id in ids], crew.calls, finals_of(story))
    counted = require_once(history, crew)
    record_property("counts", f"queue, answers to {unheard} marks lost, {CUTS} cuts: {counted}")
    assert history.violations() == []
    assert crew.count("done") == len(ids)


def has_begun(crew: Crew, count: int) -> bool:
    return len(crew.calls) >= count


def has_ended(url: str, count: int) -> bool:
    return count_ended(url) >= count


def test_a_worker_whose_network_goes_dead_keeps_the_job_that_it_has_in_hand(story: str, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    lease = "select extract(epoch from lease_until)::double precision from headwater.job"
    there = "select from pg_stat_activity where application_name = 'headwater queue leases' and datname = current_database()"
    (tmp_path / "other").mkdir()
    # A renewal that hangs is given up after a third of the lease; then a sixth of it, 3 s, is left to connect and renew.
    settings = {"lease": 18, "answer_within": 2}
    with Proxy(story) as proxy, Crew(proxy.url, tmp_path, size=1, settings=settings) as crew:
        ids = enqueue_some(story, [NewJob(KIND, {"waits_until": str(go_on)}, QUEUE)])
        eventually(lambda: fetch(story, there), seconds=60)
        with Crew(story, tmp_path / "other", size=1, settings=settings) as other:
            other.wait_until_there()
            proxy.freeze()
            ((until,),) = fetch(story, lease)
            # Longer than it would have had it otherwise.
            eventually(lambda: fetch(story, lease)[0][0] > until + 5, seconds=60)
            go_on.touch()
            crew.wait_until_idle(story)
            other.stop()
        crew.stop()
    assert [(call.id, call.attempt, call.outcome) for call in [*crew.calls, *other.calls]] == [(ids[0], 1, "done")]
    assert crew.count("suspected_duplicates") == 0


def test_a_database_that_is_restarted_and_killed_under_load_has_no_job_done_twice(
    tmp_path: Path, record_property: Note
) -> None:
    # With its WAL on disk, as a server that may crash has to have it.
    with EmbeddedPostgres(postgres_settings(18, fsync="on", full_page_writes="on")) as server:
        prepare_story(server.url)
        # Some jobs are in hand all the time that the server is away.
        with Crew(server.url, tmp_path, settings={"lease": 8}) as crew, Load(server.url, slow_seconds=4) as load:
            crew.wait_until_busy()
            crew.wait_for_more(server.url, SOME)
            server.restart()
            crew.wait_for_more(server.url, SOME)
            server.kill()
            server.start()
            crew.wait_for_more(server.url, SOME)
            load.stop()
            crew.wait_until_idle(server.url)
            crew.stop()
        counted = require_once(crew.history(server.url), crew)
    record_property("counts", f"queue, database restarted and killed under load: {counted}")


def test_a_run_with_rollbacks_kills_cuts_and_stalls_keeps_every_promise(
    story: str, tmp_path: Path, record_property: Note
) -> None:
    found = run_with_faults(story, tmp_path, random.Random(SEED), count=4)
    history = found.history
    record_property("counts", f"queue, {' '.join(found.faults)}: {history.counts()}, {found.refused} marks refused")
    assert history.violations() == []
    assert {one.is_committed for one in history.enqueued} == {True, False}
