"""Jobs that do nothing, from a backlog, by one worker in a process of its own; and how fast each arm enqueues them.

The clock of a worker runs from before it connects until the last completion is durable, which another connection sees. What
a peer is set to is chosen by a trial of several settings. Arms take turns, and a ratio is the median of the rounds' ratios.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from benchmarks.queue.comparison_arms import Arm, Drain, Drained, Fill, Load, Single
from benchmarks.queue.headwater_arm import HeadwaterArm
from benchmarks.queue.peer_queues import Pgmq, Pgqueuer, Procrastinate
from benchmarks.queue.testbed import Testbed, start_testbed
from benchmarks.report import Bar, Output
from headwater.postgres.statements import execute_sync

# What is tried of each peer.
PGQUEUER: Final = tuple(Pgqueuer(batch, has_pool) for has_pool in (False, True) for batch in (10, 100, 500, 1000))
PROCRASTINATE: Final = tuple(Procrastinate(at_once, pool) for at_once, pool in ((10, 5), (30, 10), (64, 20)))
PGMQ: Final = tuple(
    Pgmq(batch, readers, has_client, "delete")
    for has_client in (True, False)
    for readers in (1, 2, 4)
    for batch in (100, 500, 1000)
)
# What has been the best of each so far.
FEW: Final[tuple[Sequence[Arm], ...]] = (
    (Pgqueuer(100, False), Pgqueuer(1000, True)),
    (Procrastinate(10, 5),),
    (Pgmq(500, 2, True, "delete"), Pgmq(500, 2, False, "delete")),
)
CALLERS: Final = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """A turn of a worker ends after so many seconds even if not all jobs are done; its rate is of those that are."""

    jobs: int = 50_000
    most_seconds: float = 20.0
    trial_jobs: int = 20_000
    trial_seconds: float = 5.0
    batch: int = 1_000
    singles: int = 10_000
    rounds: int = 3
    tried: tuple[Sequence[Arm], ...] = (PGQUEUER, PROCRASTINATE, PGMQ)


QUICK = Sizes(jobs=5_000, most_seconds=3.0, trial_jobs=2_000, trial_seconds=1.0, singles=1_000, rounds=1, tried=FEW)


@dataclass(frozen=True, slots=True)
class Turn:
    """What an arm enqueues and works off, per second, and the time of a processor that each job takes to be worked off."""

    batched: float
    worked: float
    worker_us: float = 0.0
    server_us: float = 0.0


Round = Mapping[str, Turn]


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output, helpers=1) as testbed:
        arms = chosen(testbed, sizes)
        rounds = [{arm.name: turn(testbed, arm, sizes) for arm in arms} for _ in range(sizes.rounds)]
        singles = [{arm.name: single(testbed, arm, sizes) for arm in arms} for _ in range(sizes.rounds)]
    tell(output, arms, rounds, singles)
    return [
        Bar("jobs_over_best_peer", over_best_peer(rounds), at_least=2.0),
        Bar("jobs_per_s", round(statistics.median(one["ours"].worked for one in rounds)), at_least=10_000),
    ]


def over_best_peer(rounds: Sequence[Round]) -> float:
    """Ours over the peer that was the fastest in the same round."""
    ratios = [one["ours"].worked / max(turn.worked for name, turn in one.items() if name != "ours") for one in rounds]
    return round(statistics.median(ratios), 3)


def over(rounds: Sequence[Round], peer: str) -> float:
    return round(statistics.median(one["ours"].worked / one[peer].worked for one in rounds), 3)


def tell(output: Output, arms: Sequence[Arm], rounds: Sequence[Round], singles: Sequence[Mapping[str, float]]) -> None:
    figures = output.figures
    for arm in arms:
        turns = [one[arm.name] for one in rounds]
        figures[f"jobs_{arm.name}_per_s"] = round(statistics.median(turn.worked for turn in turns))
        figures[f"jobs_{arm.name}_worker_cpu_us"] = round(statistics.median(turn.worker_us for turn in turns), 1)
        figures[f"jobs_{arm.name}_server_cpu_us"] = round(statistics.median(turn.server_us for turn in turns), 1)
        figures[f"enqueue_batches_{arm.name}_per_s"] = round(statistics.median(turn.batched for turn in turns))
        figures[f"enqueue_64_callers_{arm.name}_per_s"] = round(statistics.median(one[arm.name] for one in singles))
        figures[f"jobs_{arm.name}_settings"] = arm.settings
        figures[f"jobs_{arm.name}_keeps"] = arm.keeps
        if arm.name != "ours":
            figures[f"jobs_over_{arm.name}"] = over(rounds, arm.name)


def chosen(testbed: Testbed, sizes: Sizes) -> tuple[Arm, ...]:
    """Ours, and each peer in its best settings; pgmq in the same settings also with its archive, and with tasks."""
    ours = HeadwaterArm()
    for arm in (ours, *(every[0] for every in sizes.tried)):
        arm.install(testbed.url, testbed.connection)
        testbed.helpers[0].run(Load(arm))
    pgqueuer, procrastinate, deleting = (best(testbed, every, sizes) for every in sizes.tried)
    assert isinstance(deleting, Pgmq)
    archiving = replace(deleting, finish="archive")
    return ours, pgqueuer, procrastinate, deleting, archiving, replace(archiving, has_tasks=True)


def best(testbed: Testbed, arms: Sequence[Arm], sizes: Sizes) -> Arm:
    """The fastest of several settings, each tried once."""
    rates = {arm: drained(testbed, arm, sizes.trial_jobs, sizes.trial_seconds, sizes).per_second for arm in arms}
    for arm, rate in rates.items():
        testbed.output.console.print(f"tried {arm.name}, {arm.settings}: {rate:,.0f} jobs/s")
    return max(rates, key=lambda arm: rates[arm])


def turn(testbed: Testbed, arm: Arm, sizes: Sizes) -> Turn:
    seconds = fill(testbed, arm, sizes.jobs, sizes.batch)
    testbed.settle()
    before = testbed.server_cpu()
    done = drain(testbed, arm, sizes.jobs, sizes.most_seconds)
    server, jobs = testbed.server_cpu() - before, max(done.jobs, 1)
    return Turn(sizes.jobs / seconds, done.per_second, done.cpu_seconds / jobs * 1e6, server / jobs * 1e6)


def drained(testbed: Testbed, arm: Arm, jobs: int, seconds: float, sizes: Sizes) -> Drained:
    fill(testbed, arm, jobs, sizes.batch)
    testbed.settle()
    return drain(testbed, arm, jobs, seconds)


def fill(testbed: Testbed, arm: Arm, jobs: int, batch: int) -> float:
    with testbed.output.console.status(f"{jobs:,} jobs for {arm.name}"):
        execute_sync(testbed.connection, arm.empty())
        return cast("float", testbed.helpers[0].run(Fill(arm, testbed.url, jobs, batch)))


def drain(testbed: Testbed, arm: Arm, jobs: int, seconds: float) -> Drained:
    with testbed.output.console.status(f"{jobs:,} jobs worked off by {arm.name}, {arm.settings}"):
        done = cast("Drained", testbed.helpers[0].run(Drain(arm, testbed.url, jobs, seconds)))
        # What is left would be worked off by the next.
        execute_sync(testbed.connection, arm.empty())
    return done


def single(testbed: Testbed, arm: Arm, sizes: Sizes) -> float:
    with testbed.output.console.status(f"{CALLERS} callers of {arm.name}"):
        execute_sync(testbed.connection, arm.empty())
        taken = cast("float", testbed.helpers[0].run(Single(arm, testbed.url, sizes.singles, CALLERS)))
        execute_sync(testbed.connection, arm.empty())
    return sizes.singles / taken
