"""Throughput under one old transaction, over that before it began: nothing that is dead can be removed meanwhile.

Writers write as fast as they go for a while, and the clock stops when all groups have everything. In between a steady load
goes on while the transaction gets old.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.report import Bar, Output
from benchmarks.topics import statements
from benchmarks.topics.comparison_arms import Arm
from benchmarks.topics.headwater_arm import HeadwaterArm
from benchmarks.topics.load import SMALL
from benchmarks.topics.reference_log import FIXED
from benchmarks.topics.testbed import Testbed, start_testbed, wal_files
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync

# What goes on while the transaction gets old: half of what the reference keeps up with on two processors.
AGING_PER_SECOND: Final = 1_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long the transaction gets old, how long is written then, and how long the readers may take for what is left."""

    aging_seconds: float = 600.0
    seconds: float = 10.0
    patience_seconds: float = 300.0


QUICK = Sizes(aging_seconds=3.0, seconds=1.0, patience_seconds=60.0)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    arms: tuple[Arm, ...] = (FIXED, HeadwaterArm())
    with start_testbed(output, wal_files(quick)) as testbed:
        ratios = {arm.name: held_over_free(testbed, arm, sizes) for arm in arms}
    output.figures["held_horizon_ratio_of_reference"] = ratios["fixed"]
    return [Bar("held_horizon_ratio", ratios["ours"], at_least=0.8)]


def held_over_free(testbed: Testbed, arm: Arm, sizes: Sizes) -> float:
    """On the same tables, before and under the old transaction."""
    arm.prepare(testbed.connection, SMALL)
    free = rate_of(testbed, arm, sizes)
    with held(testbed.url):
        with testbed.output.console.status(f"a transaction gets old, {arm.name}"):
            testbed.run(arm, SMALL.at(AGING_PER_SECOND, sizes.aging_seconds), patience_seconds=sizes.patience_seconds)
        slowed = rate_of(testbed, arm, sizes)
    arm.remove(testbed.connection)
    testbed.output.figures[f"horizon_{arm.name}_free_per_s"] = round(free)
    testbed.output.figures[f"horizon_{arm.name}_held_per_s"] = round(slowed)
    return round(slowed / free, 3)


def rate_of(testbed: Testbed, arm: Arm, sizes: Sizes) -> float:
    with testbed.output.console.status(f"writers and readers of {arm.name} as fast as they go"):
        turn = testbed.run(arm, SMALL.at(None, sizes.seconds), patience_seconds=sizes.patience_seconds)
    assert turn.has_all, f"the readers of {arm.name} did not get all messages in time"
    return turn.writes.count / turn.seconds


@contextmanager
def held(url: str) -> Iterator[None]:
    with closing(connect_sync(url)) as connection, connection.transaction():
        fetch_sync(connection, statements.hold())
        yield
