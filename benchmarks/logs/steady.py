"""Half an hour of a steady load: whether messages arrive as soon at the end as before, and tables stay as large as they are.

What is older than two minutes is not kept, and another process than the readers and writers sees to that.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.logs import statements
from benchmarks.logs.load import SMALL
from benchmarks.logs.ours import TOPIC, Ours
from benchmarks.logs.stage import Stage, Turn, milliseconds, staged, wal_files
from benchmarks.pipelines.output import Output
from benchmarks.report import Bar
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.topics import find_sync
from headwater.topics.retention import maintain

PER_SECOND: Final = 1_000
RETENTION: Final = "2m"


@dataclass(frozen=True, slots=True)
class Sizes:
    seconds: float = 1800.0


QUICK = Sizes(seconds=15.0)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes, arm = QUICK if quick else Sizes(), Ours(retention=RETENTION)
    sizes_at: list[tuple[float, float]] = []
    with staged(output, wal_files(quick)) as stage, output.console.status(f"{sizes.seconds:,.0f} seconds of a steady load"):
        arm.prepare(stage.connection, SMALL)
        turn = stage.run(arm, SMALL.at(PER_SECOND, sizes.seconds), watch=lambda: sizes_at.append(upkeep(stage)))
    return tell(output, turn, sizes_at)


def upkeep(stage: Stage) -> tuple[float, float]:
    """Drop what is not kept any more; the time, and the size of all tables then."""
    with closing(connect_sync(stage.url)) as connection:
        maintain(connection, find_sync(connection, TOPIC))
        (size,) = fetch_sync(connection, statements.read_sizes())
    return time.time(), size


def tell(output: Output, turn: Turn, sizes_at: list[tuple[float, float]]) -> list[Bar]:
    """The last third over the one before; the first is for what has to fill up."""
    began, third = turn.writes.began, turn.load.seconds / 3
    due = np.concatenate([one.due for one in turn.reads]) - began
    age = np.concatenate([one.age for one in turn.reads])
    before, last = (milliseconds(age[(due >= third * place) & (due < third * (place + 1))], 99) for place in (1, 2))
    output.figures["steady_p99_ms"], output.figures["steady_last_p99_ms"] = before, last
    largest = [
        max((size for at, size in sizes_at if third * place <= at - began < third * (place + 1)), default=float("nan"))
        for place in (1, 2)
    ]
    output.figures["steady_table_bytes"], output.figures["steady_last_table_bytes"] = largest
    return [
        Bar("steady_p99_last_over_before", round(last / before, 3), at_most=1.5),
        Bar("steady_size_last_over_before", round(largest[1] / largest[0], 3), at_most=1.2),
    ]
