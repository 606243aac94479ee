"""How much an arm keeps up with, and what it costs at the same offered load.

An arm keeps up with a load if all groups receive everything, 99 percent of it within a second of when it was due, and
messages do not get older while it goes on. The load is raised by steps until an arm does not, and then halved between the
two. The reference is what is better of the original as coded and with its sleep fixed.
"""

import math
import statistics
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.report import Bar, Output
from benchmarks.topics.comparison_arms import Arm
from benchmarks.topics.headwater_arm import HeadwaterArm
from benchmarks.topics.load import LARGE, SMALL, Load
from benchmarks.topics.reference_log import CODED, FIXED
from benchmarks.topics.testbed import Testbed, Turn, milliseconds, start_testbed, wal_files

ARMS: Final[tuple[Arm, ...]] = (CODED, FIXED, HeadwaterArm())
LATE_SECONDS: Final = 1.0
# A backlog is flat if in a second of the run messages get older by less than this: the arm is within 5 percent of the load.
FLAT: Final = 0.05
STEP: Final = 1.6
# An arm that does not even keep up with so much of the first load keeps up with nothing.
LEAST: Final = 0.1


@dataclass(frozen=True, slots=True)
class Sizes:
    """The throttle of the original, and how long a step and a turn of the comparison are."""

    rate: float
    first: float
    step_seconds: float = 12.0
    halvings: int = 3
    turn_seconds: float = 30.0
    rounds: int = 3


SMALL_SIZES = Sizes(rate=5_000, first=2_000)
LARGE_SIZES = Sizes(rate=250_000, first=2_000)
SMALL_QUICK = Sizes(rate=5_000, first=4_000, step_seconds=2.0, halvings=0, turn_seconds=3.0, rounds=1)
LARGE_QUICK = Sizes(rate=250_000, first=4_000, step_seconds=2.0, halvings=0, turn_seconds=3.0, rounds=1)


def measure_small(quick: bool, output: Output) -> list[Bar]:
    sizes = SMALL_QUICK if quick else SMALL_SIZES
    with start_testbed(output, wal_files(quick)) as testbed:
        kept = sustain(testbed, "p1", SMALL, sizes)
        bars = compare(testbed, SMALL, sizes, min(sizes.rate, 0.7 * min(kept["coded"], kept["fixed"])))
    return [*bars, Bar("p1_sustained_over_reference", over_reference(kept), at_least=3.0)]


def measure_large(quick: bool, output: Output) -> list[Bar]:
    with start_testbed(output, wal_files(quick)) as testbed:
        kept = sustain(testbed, "p2", LARGE, LARGE_QUICK if quick else LARGE_SIZES)
    return [Bar("p2_sustained_over_reference", over_reference(kept), at_least=3.0)]


def over_reference(kept: dict[str, float]) -> float:
    best = max(kept["coded"], kept["fixed"])
    return round(kept["ours"] / best, 3) if best else float("nan")


def sustain(testbed: Testbed, name: str, load: Load, sizes: Sizes) -> dict[str, float]:
    """The highest load of each arm."""
    kept: dict[str, float] = {}
    for arm in ARMS:
        kept[arm.name] = highest(testbed, arm, load, sizes)
        testbed.output.figures[f"{name}_sustained_{arm.name}_per_s"] = round(kept[arm.name])
    return kept


def highest(testbed: Testbed, arm: Arm, load: Load, sizes: Sizes) -> float:
    def keeps(rate: float) -> bool:
        with testbed.output.console.status(f"{rate:,.0f} messages a second, {arm.name}"):
            turn = testbed.turn(arm, load.at(rate, sizes.step_seconds))
        found = keeps_up(turn)
        testbed.output.console.print(
            f"{arm.name}: {rate:,.0f}/s {'kept' if found else 'not kept'}, p99 {milliseconds(turn.ages, 99):,.0f} ms"
        )
        return found

    good, bad = 0.0, math.inf
    rate = sizes.first
    # Down to a load that is kept, or up to one that is not.
    while (good == 0 or bad == math.inf) and rate > sizes.first * LEAST:
        if keeps(rate):
            good, rate = rate, rate * STEP
        else:
            bad, rate = rate, rate / STEP
    for _ in range(sizes.halvings if good else 0):
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if keeps(middle) else (good, middle)
    return good


def keeps_up(turn: Turn) -> bool:
    return (
        turn.writes.count >= turn.load.offered
        and turn.has_all
        and milliseconds(turn.ages, 99) < LATE_SECONDS * 1000
        and turn.growth() < FLAT
    )


def compare(testbed: Testbed, load: Load, sizes: Sizes, rate: float) -> list[Bar]:
    """All arms at a load that all keep up with, in turns; a ratio is the median of those of the rounds."""
    testbed.output.figures["p1_offered_per_s"] = round(rate)
    rounds: list[dict[str, Turn]] = []
    for _ in range(sizes.rounds):
        turns = {}
        for arm in ARMS:
            with testbed.output.console.status(f"{rate:,.0f} messages a second, {arm.name}"):
                turns[arm.name] = testbed.turn(arm, load.at(rate, sizes.turn_seconds))
        rounds.append(turns)
    for arm in ARMS:
        tell(testbed.output, f"p1_{arm.name}", [turns[arm.name] for turns in rounds])
    bars = []
    for name, most in (("flushes", 0.25), ("cpu", 0.5), ("e2e_p50", 1.0), ("e2e_p99", 1.0)):
        ratios = [
            costs_of(turns["ours"])[name] / min(costs_of(turns["coded"])[name], costs_of(turns["fixed"])[name])
            for turns in rounds
        ]
        bars.append(Bar(f"p1_{name}_ratio", round(statistics.median(ratios), 3), at_most=most))
    return bars


def costs_of(turn: Turn) -> dict[str, float]:
    """What a turn cost: the server for each message that was written, and the time until it was received."""
    count = max(turn.writes.count, 1)
    written, read = np.asarray(turn.writes.seconds), np.concatenate([np.asarray(one.seconds) for one in turn.reads])
    return {
        "flushes": round(turn.used.flushes / turn.used.at, 1),
        "cpu": round(turn.used.cpu_seconds / turn.used.at, 3),
        "client_cpu": round(turn.client_cpu_seconds / turn.seconds, 3),
        "wal_bytes_per_message": round(turn.used.wal_bytes / count),
        "empty_polls": round(sum(one.empty_polls for one in turn.reads) / turn.seconds),
        **{f"e2e_p{percent}": milliseconds(turn.ages, percent) for percent in (50, 95, 99)},
        **{f"e2e_by_server_p{percent}": milliseconds(turn.server_ages, percent) for percent in (50, 99)},
        **{f"write_p{percent}": milliseconds(written, percent) for percent in (50, 99)},
        **{f"read_p{percent}": milliseconds(read, percent) for percent in (50, 99)},
    }


def tell(output: Output, name: str, turns: list[Turn]) -> None:
    """Times in ms; flushes, processors and empty polls by the second."""
    costs = [costs_of(turn) for turn in turns]
    for what in costs[0]:
        output.figures[f"{name}_{what}"] = round(statistics.median(one[what] for one in costs), 3)
