"""Throughput under one old transaction, over that before it began: nothing that is dead can be removed meanwhile.

Writers write as fast as they go for a while, and the clock stops when all groups have everything. In between a steady load
goes on while the transaction gets old.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.logs import statements
from benchmarks.logs.arms import Arm
from benchmarks.logs.load import SMALL
from benchmarks.logs.ours import Ours
from benchmarks.logs.reference import FIXED
from benchmarks.logs.stage import Stage, staged, wal_files
from benchmarks.pipelines.output import Output
from benchmarks.report import Bar
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
    arms: tuple[Arm, ...] = (FIXED, Ours())
    with staged(output, wal_files(quick)) as stage:
        ratios = {arm.name: held_over_free(stage, arm, sizes) for arm in arms}
    output.figures["held_horizon_ratio_of_reference"] = ratios["fixed"]
    return [Bar("held_horizon_ratio", ratios["ours"], at_least=0.8)]


def held_over_free(stage: Stage, arm: Arm, sizes: Sizes) -> float:
    """On the same tables, before and under the old transaction."""
    arm.prepare(stage.connection, SMALL)
    free = rate_of(stage, arm, sizes)
    with held(stage.url):
        with stage.output.console.status(f"a transaction gets old, {arm.name}"):
            stage.run(arm, SMALL.at(AGING_PER_SECOND, sizes.aging_seconds), patience_seconds=sizes.patience_seconds)
        slowed = rate_of(stage, arm, sizes)
    arm.remove(stage.connection)
    stage.output.figures[f"horizon_{arm.name}_free_per_s"] = round(free)
    stage.output.figures[f"horizon_{arm.name}_held_per_s"] = round(slowed)
    return round(slowed / free, 3)


def rate_of(stage: Stage, arm: Arm, sizes: Sizes) -> float:
    with stage.output.console.status(f"writers and readers of {arm.name} as fast as they go"):
        turn = stage.run(arm, SMALL.at(None, sizes.seconds), patience_seconds=sizes.patience_seconds)
    assert turn.has_all, f"the readers of {arm.name} did not get all messages in time"
    return turn.writes.count / turn.seconds


@contextmanager
def held(url: str) -> Iterator[None]:
    with closing(connect_sync(url)) as connection, connection.transaction():
        fetch_sync(connection, statements.hold())
        yield
