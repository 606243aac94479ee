"""Two runs of one pipeline under load: the one that delivers is killed, the other takes over, and a new one stands by."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from headwater.embedded import EmbeddedPostgres
from tests.soak.story import Counts, Round
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import postgres_settings
from tests.support.stories.account_load import NAMES, AccountLoad, create_accounts, steps_back, wait_for_entries
from tests.support.stories.pipeline_process import Runner, settle, write_file
from tests.support.waiting import eventually

TAKEOVERS = 2
# With the hits of which one kills. They count only in the run that delivers, and come when the other one stands by, which
# takes ten seconds to start.
POINTS = {"batch.begin": (60, 160), "sink.written": (60, 160), "pipeline.lease_renewal": (4, 9)}
MORE_ENTRIES = 50
# For the last of the hits: on a busy machine, a batch takes more than a second.
_KILL_SECONDS = 300


def run(round: Round) -> Counts:
    choose = round.random
    seed = choose.randrange(2**31)
    plan = [_draw(choose) for _ in range(TAKEOVERS)]
    faults: list[str] = []
    # Whether the run that took over had been ready to when the other one died, which depends on the machine.
    stood_by: list[str] = []
    with EmbeddedPostgres(postgres_settings(18)) as source, EmbeddedPostgres(postgres_settings(18)) as target:
        create_accounts(source.url, target.url)
        urls, tables = {"source": source.url, "target": target.url}, [f"public.{name}" for name in NAMES]
        write_file(round.directory, "takeover", **urls, tables=tables, max_bytes="1MiB")
        with _runs() as runs:
            runs.append(_start(round, 0, plan[0][0]))
            # Else the one that is to stand by might come first.
            eventually(partial(_delivers, runs[0]), seconds=90)
            with AccountLoad(source.url, target.url, random.Random(seed)):
                for number, (term, entries) in enumerate(plan):
                    following = plan[number + 1][0] if number + 1 < TAKEOVERS else ""
                    runs.append(_start(round, number + 1, following))
                    leader, standby = runs[-2:]
                    eventually(partial(_is_there, standby), seconds=90)
                    if term:
                        leader.wait_for_kill(_KILL_SECONDS)
                    else:
                        wait_for_entries(target.url, entries, leader.require_life)
                        leader.end()
                    faults.append(term or f"leader+{entries}")
                    stood_by.append("stood-by" if _stands_by(standby) else "started")
                    # Only the other run can deliver what comes now. If it dies at a failpoint instead, it has begun to.
                    if not following:
                        wait_for_entries(target.url, MORE_ENTRIES, standby.require_life)
            found = settle(runs[-1], source.url, target.url, NAMES)
            assert runs[-1].stop() == 0
        backwards = steps_back(target.url)
    return Counts(
        found.rows, found.lost + found.ghosts, found.twice, backwards, faults=tuple(faults), observed=tuple(stood_by)
    )


def _draw(choose: random.Random) -> tuple[str, int]:
    """How the run that delivers is killed: at a failpoint, or after so many more entries."""
    point, entries = choose.choice([*POINTS, ""]), choose.randint(1, 500)
    return (f"{point}=kill@{choose.randint(*POINTS[point])}" if point else ""), entries


def _start(round: Round, number: int, term: str) -> Runner:
    directory = round.directory / f"run{number}"
    directory.mkdir()
    return Runner(round.directory, Failpoints(directory, term).environment, log_name=f"run{number}.log")


def _is_there(run: Runner) -> bool:
    """Whether a run stands by, or has taken over already."""
    return _stands_by(run) or _delivers(run)


def _stands_by(run: Runner) -> bool:
    return "ready to take over" in run.log


def _delivers(run: Runner) -> bool:
    return '"phase": "running"' in run.log


@contextmanager
def _runs() -> Iterator[list[Runner]]:
    runs: list[Runner] = []
    try:
        yield runs
    finally:
        for run in runs:
            run.end()
