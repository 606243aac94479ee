"""Writers alone, as fast as they go: in batches as in P1, and with single messages of 64 callers to one partition."""

import statistics
from dataclasses import dataclass, replace

from benchmarks.report import Bar, Output
from benchmarks.topics.comparison_arms import Arm
from benchmarks.topics.headwater_arm import HeadwaterArm
from benchmarks.topics.load import SINGLE, SMALL, Load
from benchmarks.topics.reference_log import FIXED
from benchmarks.topics.testbed import Testbed, start_testbed, wal_files


@dataclass(frozen=True, slots=True)
class Sizes:
    seconds: float = 15.0
    rounds: int = 3


QUICK = Sizes(seconds=2.0, rounds=1)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output, wal_files(quick)) as testbed:
        batches = over_reference(testbed, "write_ceiling", replace(SMALL, groups=0), sizes)
        single = over_reference(testbed, "single", SINGLE, sizes)
    return [
        Bar("p1_write_ceiling_over_reference", batches, at_least=1.5),
        Bar("single_over_reference", single, at_least=10.0),
    ]


def over_reference(testbed: Testbed, name: str, load: Load, sizes: Sizes) -> float:
    """How the original reads makes no difference here."""
    arms: tuple[Arm, ...] = (FIXED, HeadwaterArm())
    rates: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(sizes.rounds):
        for arm in arms:
            with testbed.output.console.status(f"{name} of {arm.name}"):
                turn = testbed.turn(arm, load.at(None, sizes.seconds))
            rates[arm.name].append(turn.writes.count / turn.seconds)
            testbed.output.figures[f"{name}_{arm.name}_flushes"] = round(turn.used.flushes / turn.used.at)
            testbed.output.figures[f"{name}_{arm.name}_cpu"] = round(turn.used.cpu_seconds / turn.used.at, 3)
    for arm in arms:
        testbed.output.figures[f"{name}_{arm.name}_per_s"] = round(statistics.median(rates[arm.name]))
    ratios = [ours / theirs for ours, theirs in zip(rates["ours"], rates["fixed"], strict=True)]
    return round(statistics.median(ratios), 3)
