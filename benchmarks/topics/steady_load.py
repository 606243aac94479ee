"""Half an hour of a steady load: whether messages arrive as soon at the end as before, and tables stay as large as they are.

What is older than two minutes is not kept, and another process than the readers and writers sees to that.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.report import Bar, Output
from benchmarks.topics import statements
from benchmarks.topics.headwater_arm import TOPIC, HeadwaterArm
from benchmarks.topics.load import SMALL
from benchmarks.topics.testbed import Testbed, Turn, milliseconds, start_testbed, wal_files
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
    sizes, arm = QUICK if quick else Sizes(), HeadwaterArm(retention=RETENTION)
    sizes_at: list[tuple[float, float]] = []
    with (
        start_testbed(output, wal_files(quick)) as testbed,
        output.console.status(f"{sizes.seconds:,.0f} seconds of a steady load"),
    ):
        arm.prepare(testbed.connection, SMALL)
        turn = testbed.run(arm, SMALL.at(PER_SECOND, sizes.seconds), watch=lambda: sizes_at.append(upkeep(testbed)))
    return tell(output, turn, sizes_at)


def upkeep(testbed: Testbed) -> tuple[float, float]:
    """Drop what is not kept any more; the time, and the size of all tables then."""
    with closing(connect_sync(testbed.url)) as connection:
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
