"""Groups that wait for messages which do not come: what their polls write.

Leases last longer than the run, so that no renewal falls into it. Counted is what the backends of the readers write: now and
again PostgreSQL's own processes write some bytes also when nobody does anything. The reference as coded is beside.
"""

import time
from dataclasses import dataclass
from datetime import timedelta

from benchmarks.logs import statements
from benchmarks.logs.arms import Arm
from benchmarks.logs.load import SMALL
from benchmarks.logs.ours import Ours
from benchmarks.logs.reference import CODED
from benchmarks.logs.stage import Stage, staged
from benchmarks.pipelines.output import Output
from benchmarks.report import Bar
from headwater.postgres.statements import fetch_sync


@dataclass(frozen=True, slots=True)
class Sizes:
    settle_seconds: float = 5.0
    seconds: float = 30.0


QUICK = Sizes(settle_seconds=2.0, seconds=4.0)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    arms: tuple[tuple[Arm, str], ...] = ((CODED, "headwater"), (Ours(lease=timedelta(hours=1)), "headwater subscriber"))
    with staged(output) as stage:
        written = {arm.name: idle(stage, arm, name, sizes) for arm, name in arms}
    return [Bar("idle_poll_wal_bytes", written["ours"], at_most=0.0)]


def idle(stage: Stage, arm: Arm, application_name: str, sizes: Sizes) -> float:
    """What the readers wrote while they were idle."""
    arm.prepare(stage.connection, SMALL)
    with stage.reading(arm, SMALL), stage.output.console.status(f"idle groups of {arm.name}"):
        time.sleep(sizes.settle_seconds)
        before, written_before = stage.meter(), wal_of(stage, application_name)
        time.sleep(sizes.seconds)
        used, written = stage.meter().since(before), wal_of(stage, application_name) - written_before
    for worker in stage.workers.readers[: SMALL.groups]:
        worker.result()
    arm.remove(stage.connection)
    stage.output.figures[f"idle_{arm.name}_wal_bytes_per_s"] = round(written / used.at)
    stage.output.figures[f"idle_{arm.name}_transactions_per_s"] = round(used.commits / used.at, 1)
    stage.output.figures[f"idle_{arm.name}_cpu"] = round(used.cpu_seconds / used.at, 3)
    return written


def wal_of(stage: Stage, application_name: str) -> float:
    (written,) = fetch_sync(stage.connection, statements.read_wal_of_readers(application_name))
    return written
