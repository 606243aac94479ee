"""How soon a job begins: 50 a second, one by one in their own transactions, to a worker that is idle in between.

From right before the statement that enqueues a job, which is stricter than from its commit, to the start of its handler.
"""

import time
from dataclasses import dataclass
from typing import Final, cast

from benchmarks.queue.steady_load import Ages, Offer, Offered, Receive, milliseconds
from benchmarks.queue.testbed import Testbed, start_testbed
from benchmarks.report import Bar, Output
from headwater.queue import prepare_queue

PER_SECOND: Final = 50
# What comes first is not counted: statements are not prepared yet.
COUNTED: Final = 0.9


@dataclass(frozen=True, slots=True)
class Sizes:
    seconds: float = 60.0
    settle_seconds: float = 2.0


QUICK = Sizes(seconds=5.0, settle_seconds=1.0)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output, helpers=2) as testbed:
        prepare_queue(testbed.connection)
        ages = picked_up(testbed, sizes).of_last(COUNTED)
    output.figures["pickup_jobs"] = ages.size
    output.figures["pickup_max_ms"] = milliseconds(ages, 100)
    return [
        Bar("pickup_p50_ms", milliseconds(ages, 50), at_most=10.0),
        Bar("pickup_p99_ms", milliseconds(ages, 99), at_most=50.0),
    ]


def picked_up(testbed: Testbed, sizes: Sizes) -> Ages:
    producer, worker = testbed.helpers
    with testbed.output.console.status(f"{PER_SECOND} jobs a second"):
        worker.begin(Receive(testbed.url))
        testbed.wait_until_ready([worker])
        time.sleep(sizes.settle_seconds)
        offered = cast("Offered", producer.run(Offer(testbed.url, PER_SECOND, sizes.seconds)))
        testbed.wait_until(lambda: worker.board.handled.value >= offered.jobs, "the last job")
        return cast("Ages", worker.finish())
