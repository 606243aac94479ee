"""A backlog from the outbox to JetStream through a pipeline, against the reference, both from the same WAL.

Four writers have written it, in transactions of 1, 10 or 100 events, before a clock begins. Each arm has a slot of its own
and a stream of its own. A rate is that of the stream, from the first message that it stored to the last; the reference stops
after fewer events. That leaves out what we take before our first batch is there, which is much of a short backlog, and next
to nothing for the reference: so the same ratios from the first read of our slot on are among the figures, `with_read`. In
turns, on one Spark session; a first turn does not count. Then the latency, at a steady rate.
"""

import asyncio
import statistics
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from benchmarks.outbox_wal import latency, reference_relay
from benchmarks.outbox_wal.relay import Relay, relaying
from benchmarks.outbox_wal.statements import publish_inserts
from benchmarks.outbox_wal.testbed import Stored, Testbed, slot, start_testbed
from benchmarks.report import Bar, Output
from benchmarks.spark_session import spark_session
from headwater.postgres.statements import execute_sync

REFERENCE_SLOT = "reference"
# Events in a transaction, and what is asked of us there.
SHAPES = {1: 5.0, 10: 2.0, 100: 1.0}


@dataclass(frozen=True, slots=True)
class Sizes:
    events: int = 150_000
    reference_events: int = 10_000
    warm_up: int = 30_000
    rounds: int = 3
    steady: latency.Sizes = field(default_factory=latency.Sizes)


QUICK = Sizes(events=50_000, reference_events=4_000, warm_up=20_000, rounds=1, steady=latency.QUICK)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one backlog took, by both."""

    ours: Stored
    read_at: float
    status_packets: int
    theirs: Stored
    their_packets: int

    @property
    def ratio(self) -> float:
        return self.ours.per_second / self.theirs.per_second

    @property
    def ratio_with_read(self) -> float:
        return self.per_second_with_read / self.theirs.per_second

    @property
    def per_second_with_read(self) -> float:
        """From the first read of the slot on."""
        return self.ours.messages / (self.ours.last - self.read_at)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output) as testbed, output.console.status("starting Spark") as status, spark_session() as spark:
        status.stop()
        execute_sync(testbed.connection, publish_inserts(reference_relay.PUBLICATION))
        bars = relay_bars(testbed, spark, sizes)
        latency.measure(testbed, spark, sizes.steady)
    return bars


def relay_bars(testbed: Testbed, spark: SparkSession, sizes: Sizes) -> list[Bar]:
    bars = []
    with testbed.target() as first, relaying(testbed, spark, first.messages) as relay:
        warm_up(testbed, relay, sizes.warm_up)
        for per_transaction, wanted in SHAPES.items():
            turns = [turn_of(testbed, relay, per_transaction, sizes) for _ in range(sizes.rounds)]
            tell(turns, per_transaction, testbed.output)
            ratio = statistics.median(turn.ratio for turn in turns)
            bars.append(Bar(f"relay_over_reference_{per_transaction}", round(ratio, 2), at_least=wanted))
    return bars


def warm_up(testbed: Testbed, relay: Relay, events: int) -> None:
    testbed.write(events, 10)
    with testbed.target() as target, testbed.output.console.status("warming up"):
        relay.deliver(target.messages)
        target.require(events)


def turn_of(testbed: Testbed, relay: Relay, per_transaction: int, sizes: Sizes) -> Turn:
    console = testbed.output.console
    testbed.empty()
    with slot(testbed, REFERENCE_SLOT):
        testbed.write(sizes.events, per_transaction)
        with testbed.target() as target, console.status(f"transactions of {per_transaction}, by the pipeline"):
            delivered = relay.deliver(target.messages)
            ours = target.require(sizes.events)
        with testbed.target() as target, console.status(f"transactions of {per_transaction}, by the reference"):
            relayed = asyncio.run(reference_relay.relay(testbed.url, REFERENCE_SLOT, target, sizes.reference_events))
            theirs = target.require(relayed.events)
    return Turn(ours, delivered.read_at, delivered.status_packets, theirs, relayed.status_packets)


def tell(turns: list[Turn], per_transaction: int, output: Output) -> None:
    ours, theirs = [turn.ours for turn in turns], [turn.theirs for turn in turns]

    def median(values: list[float]) -> float:
        return statistics.median(values)

    output.figures.update(
        {
            f"relay_events_{per_transaction}": ours[0].messages,
            f"relay_seconds_{per_transaction}": round(median([one.last - one.first for one in ours]), 2),
            f"relay_events_per_s_{per_transaction}": round(median([one.per_second for one in ours])),
            f"relay_events_per_s_with_read_{per_transaction}": round(median([one.per_second_with_read for one in turns])),
            f"relay_over_reference_with_read_{per_transaction}": round(median([one.ratio_with_read for one in turns]), 2),
            f"relay_status_packets_{per_transaction}": median([one.status_packets for one in turns]),
            f"reference_events_{per_transaction}": theirs[0].messages,
            f"reference_seconds_{per_transaction}": round(median([one.last - one.first for one in theirs]), 2),
            f"reference_events_per_s_{per_transaction}": round(median([one.per_second for one in theirs])),
            f"reference_status_packets_{per_transaction}": median([one.their_packets for one in turns]),
        }
    )
