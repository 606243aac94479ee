"""A worker that waits for jobs which do not come: what it writes, and how often it asks.

Counted is all that is written on the server. Its own processes write now and again also when nobody does anything: vacuums,
and notes of running transactions for standbys. Those are switched off here, so that each byte is the worker's.
"""

import time
from dataclasses import dataclass
from typing import Final

from benchmarks.pipelines.output import Output
from benchmarks.queues import statements
from benchmarks.queues.stage import SERVER, Stage, staged
from benchmarks.queues.steady import STEADY, Receive
from benchmarks.report import Bar
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
    with staged(output, helpers=1, config=QUIET) as stage:
        prepare_queue(stage.connection)
        written = idle(stage, sizes)
    return [Bar("idle_wal_bytes_per_s", written, at_most=0.0)]


def idle(stage: Stage, sizes: Sizes) -> float:
    """Bytes per second."""
    (worker,), figures = stage.helpers, stage.output.figures
    worker.begin(Receive(stage.url, QUEUES))
    stage.wait_until_ready([worker])
    with stage.output.console.status("an idle worker"):
        time.sleep(sizes.settle_seconds)
        before = _read(stage)
        time.sleep(sizes.seconds)
        after = _read(stage)
    figures["idle_connections"] = stage.number(statements.count_backends(APPLICATION))
    worker.finish()
    # One of the two reads before, and one of those after, are in between.
    asked = max(after[1] - before[1] - 2, 0.0)
    figures["idle_statements_per_s_per_queue"] = round(asked / sizes.seconds / len(QUEUES), 2)
    return round((after[0] - before[0]) / sizes.seconds, 3)


def _read(stage: Stage) -> tuple[float, float]:
    """What was written, and how many transactions there were."""
    return stage.number(statements.read_wal()), stage.number(statements.count_transactions())
