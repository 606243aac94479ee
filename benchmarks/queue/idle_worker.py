"""A worker that waits for jobs which do not come: what it writes, and how often it asks.

Counted is all that is written on the server. Its own processes write now and again also when nobody does anything: vacuums,
and notes of running transactions for standbys. Those are switched off here, so that each byte is the worker's.
"""

import time
from dataclasses import dataclass
from typing import Final

from benchmarks.queue import statements
from benchmarks.queue.steady_load import STEADY, Receive
from benchmarks.queue.testbed import SERVER, Testbed, start_testbed
from benchmarks.report import Bar, Output
from headwater.queue import prepare_queue

# As our connections name themselves.
APPLICATION: Final = "headwater%"
QUEUES: Final = (STEADY, "other")
QUIET: Final = {**SERVER, "autovacuum": "off", "wal_level": "minimal", "max_wal_senders": "0"}


@dataclass(frozen=True, slots=True)
class Sizes:
    settle_seconds: float = 10.0
    seconds: float = 60.0


QUICK = Sizes(settle_seconds=3.0, seconds=5.0)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output, helpers=1, config=QUIET) as testbed:
        prepare_queue(testbed.connection)
        written = idle(testbed, sizes)
    return [Bar("idle_wal_bytes_per_s", written, at_most=0.0)]


def idle(testbed: Testbed, sizes: Sizes) -> float:
    """Bytes per second."""
    (worker,), figures = testbed.helpers, testbed.output.figures
    worker.begin(Receive(testbed.url, QUEUES))
    testbed.wait_until_ready([worker])
    with testbed.output.console.status("an idle worker"):
        time.sleep(sizes.settle_seconds)
        before = _read(testbed)
        time.sleep(sizes.seconds)
        after = _read(testbed)
    figures["idle_connections"] = testbed.number(statements.count_backends(APPLICATION))
    worker.finish()
    # One of the two reads before, and one of those after, are in between.
    asked = max(after[1] - before[1] - 2, 0.0)
    figures["idle_statements_per_s_per_queue"] = round(asked / sizes.seconds / len(QUEUES), 2)
    return round((after[0] - before[0]) / sizes.seconds, 3)


def _read(testbed: Testbed) -> tuple[float, float]:
    """What was written, and how many transactions there were."""
    return testbed.number(statements.read_wal()), testbed.number(statements.count_transactions())
