"""Groups that wait for messages which do not come: what their polls write.

Leases last longer than the run, so that no renewal falls into it. Counted is what the backends of the readers write: now and
again PostgreSQL's own processes write some bytes also when nobody does anything. The reference as coded is beside.
"""

import time
from dataclasses import dataclass
from datetime import timedelta

from benchmarks.report import Bar, Output
from benchmarks.topics import statements
from benchmarks.topics.comparison_arms import Arm
from benchmarks.topics.headwater_arm import HeadwaterArm
from benchmarks.topics.load import SMALL
from benchmarks.topics.reference_log import CODED
from benchmarks.topics.testbed import Testbed, start_testbed
from headwater.postgres.statements import fetch_sync


@dataclass(frozen=True, slots=True)
class Sizes:
    settle_seconds: float = 5.0
    seconds: float = 30.0


QUICK = Sizes(settle_seconds=2.0, seconds=4.0)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    arms: tuple[tuple[Arm, str], ...] = (
        (CODED, "headwater"),
        (HeadwaterArm(lease=timedelta(hours=1)), "headwater subscriber"),
    )
    with start_testbed(output) as testbed:
        written = {arm.name: idle(testbed, arm, name, sizes) for arm, name in arms}
    return [Bar("idle_poll_wal_bytes", written["ours"], at_most=0.0)]


def idle(testbed: Testbed, arm: Arm, application_name: str, sizes: Sizes) -> float:
    """What the readers wrote while they were idle."""
    arm.prepare(testbed.connection, SMALL)
    with testbed.reading(arm, SMALL), testbed.output.console.status(f"idle groups of {arm.name}"):
        time.sleep(sizes.settle_seconds)
        before, written_before = testbed.meter(), wal_of(testbed, application_name)
        time.sleep(sizes.seconds)
        used, written = testbed.meter().since(before), wal_of(testbed, application_name) - written_before
    for worker in testbed.workers.readers[: SMALL.groups]:
        worker.result()
    arm.remove(testbed.connection)
    testbed.output.figures[f"idle_{arm.name}_wal_bytes_per_s"] = round(written / used.at)
    testbed.output.figures[f"idle_{arm.name}_transactions_per_s"] = round(used.commits / used.at, 1)
    testbed.output.figures[f"idle_{arm.name}_cpu"] = round(used.cpu_seconds / used.at, 3)
    return written


def wal_of(testbed: Testbed, application_name: str) -> float:
    (written,) = fetch_sync(testbed.connection, statements.read_wal_of_readers(application_name))
    return written
