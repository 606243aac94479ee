"""Many small transactions as fast as they go, each with a business row and an event, until all are confirmed and saved.

The clock runs from the first transaction until the broker has confirmed the last event and the table says so, durably. The
arms take turns: the relay, the reference, the writers without any relay, and the broker alone, which gets the same messages
from our own publisher in one call. The reference is stopped by a save of what it has, where the original would wait for the
next minute.
"""

import asyncio
import statistics
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from benchmarks.outbox_relay import statements
from benchmarks.outbox_relay.comparison_arms import Arm, Arms, connections, in_parallel, ours, reference, writers_alone
from benchmarks.outbox_relay.reference_relay import UPSTREAM, Reference, ReferenceSettings
from benchmarks.outbox_relay.testbed import NAME, TOPIC, TYPE, Place, Testbed, start_testbed
from benchmarks.report import Bar, Output
from headwater.brokers.registry import open_broker
from headwater.model import MESSAGE, Messages
from headwater.postgres.connect import AsyncConnection
from headwater.postgres.statements import execute_sync, fetch_sync

CONCURRENT: Final = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    events: int = 50_000
    warm_up: int = 2_000
    rounds: int = 3


QUICK = Sizes(events=3_000, warm_up=300, rounds=1)


@dataclass(frozen=True, slots=True)
class Turn:
    """What an arm took for all events, on the clock and of this process' share of the processors."""

    seconds: float
    cpu_seconds: float
    # How long the original would have waited for its next minute, to save the rest.
    seconds_to_tick: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """The turn of each arm, for the same number of events."""

    relay: Turn
    reference: Turn
    writers: Turn
    backlog: Turn
    broker: Turn

    def over(self, first: str, second: str) -> float:
        """The rate of one arm over that of another."""
        one, other = getattr(self, first), getattr(self, second)
        return float(other.seconds / one.seconds)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output) as testbed:
        round_of(testbed, sizes.warm_up)
        rounds = [round_of(testbed, sizes.events) for _ in range(sizes.rounds)]
        tell_upstream(testbed, sizes.events)
    tell(output, rounds, sizes.events)
    return [
        Bar("relay_over_reference", median_over(rounds, "relay", "reference"), at_least=1.0),
        Bar("relay_over_broker", median_over(rounds, "relay", "broker"), at_least=0.6),
    ]


def tell(output: Output, rounds: list[Round], events: int) -> None:
    figures = output.figures
    figures["burst_events"] = events
    for name in Round.__slots__:
        turns: list[Turn] = [getattr(one, name) for one in rounds]
        figures[f"burst_{name}_per_s"] = round(events / statistics.median(turn.seconds for turn in turns))
        figures[f"burst_{name}_cpu_us"] = round(statistics.median(turn.cpu_seconds for turn in turns) / events * 1e6)
    waited = statistics.median(one.reference.seconds + one.reference.seconds_to_tick for one in rounds)
    figures["burst_reference_with_its_last_save_per_s"] = round(events / waited)
    for first, second in (("relay", "writers"), ("reference", "writers"), ("writers", "broker"), ("backlog", "broker")):
        figures[f"{first}_over_{second}"] = median_over(rounds, first, second)


def median_over(rounds: list[Round], first: str, second: str) -> float:
    return round(statistics.median(one.over(first, second) for one in rounds), 3)


def round_of(testbed: Testbed, events: int) -> Round:
    writers = turn(testbed, writers_alone, events, "written")
    referred = turn(testbed, reference(ReferenceSettings()), events, "through the reference")
    relayed, alone = relayed_and_alone(testbed, events)
    return Round(relayed, referred, writers, backlog(testbed, events), alone)


def turn(testbed: Testbed, arms: Arms, events: int, what: str) -> Turn:
    """What an arm takes for so many events."""
    with testbed.place() as place, testbed.output.console.status(f"{events:,} events {what}"):
        taken = asyncio.run(run(testbed, place, arms, events))
        if arms is not writers_alone:
            place.require(events)
            (unsettled,) = fetch_sync(testbed.connection, statements.count_reference_unsettled())
            assert not unsettled, f"{unsettled} of {events} events are not known to be published"
    return taken


def relayed_and_alone(testbed: Testbed, events: int) -> tuple[Turn, Turn]:
    """What the relay takes, and the broker for the same messages from our own publisher."""
    with testbed.place() as place, testbed.output.console.status(f"{events:,} events through the relay"):
        relayed = asyncio.run(run(testbed, place, ours, events))
        place.require(events)
        ready = ready_messages(testbed)
    assert len(ready) == events, f"the outbox has {len(ready)} of {events} events"
    with testbed.place() as place, testbed.output.console.status(f"{events:,} ready messages"):
        with closing(open_broker(place.messages)) as broker:
            broker.check()
            clock = Clock()
            published = broker.publish(ready)
            alone = clock.taken()
        assert published.stored == events, f"{published.stored} of {events} messages were stored"
    return relayed, alone


class Clock:
    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def taken(self, seconds_to_tick: float = 0.0) -> Turn:
        return Turn(time.perf_counter() - self._began, time.process_time() - self._cpu, seconds_to_tick)


async def run(testbed: Testbed, place: Place, arms: Arms, events: int) -> Turn:
    numbers = iter(range(events))
    async with arms(testbed, place) as arm, connections(testbed.url, CONCURRENT) as opened:

        async def write(connection: AsyncConnection) -> None:
            for number in numbers:
                await arm.write(connection, number)

        clock = Clock()
        await in_parallel(write, opened)
        seconds_to_tick = await finish(arm, events)
        return clock.taken(seconds_to_tick)


async def finish(arm: Arm, events: int) -> float:
    """Wait for all that is left; for how long the original would, for its last save."""
    seconds_to_tick = 0.0
    if isinstance(arm, Reference):
        await arm.drain(events)
        seconds_to_tick = arm.seconds_to_tick if arm.unsaved else 0.0
    await arm.finish(events)
    return seconds_to_tick


def backlog(testbed: Testbed, events: int) -> Turn:
    """What the relay takes from its start for events that are in the table already."""
    with testbed.place() as place, testbed.output.console.status(f"{events:,} events that wait for the relay"):
        execute_sync(testbed.connection, statements.write_backlog(TOPIC, TYPE, NAME, events))
        taken = asyncio.run(drain(testbed, place, events))
        place.require(events)
    return taken


async def drain(testbed: Testbed, place: Place, events: int) -> Turn:
    clock = Clock()
    async with ours(testbed, place) as arm:
        await arm.finish(events)
        return clock.taken()


def tell_upstream(testbed: Testbed, events: int) -> None:
    """The arm as it is coded upstream: what is not there at all, and what it would send again after five minutes."""
    with testbed.place() as place, testbed.output.console.status(f"{events:,} events as coded upstream"):
        asyncio.run(run(testbed, place, reference(UPSTREAM), events))
        stored = place.count()
    (unsettled,) = fetch_sync(testbed.connection, statements.count_reference_unsettled())
    figures = testbed.output.figures
    figures["upstream_unstored"] = events - stored
    figures["upstream_repeats_after_5_min"] = unsettled


def ready_messages(testbed: Testbed) -> Messages:
    """What is in the outbox, as messages that only have to be sent."""
    rows = fetch_sync(testbed.connection, statements.read_messages())
    columns: dict[str, list[object]] = {
        name: [getattr(row, name) for row in rows] for name in ("id", "topic", "type", "created_at")
    }
    columns["payload"] = [row.payload.encode() for row in rows]
    columns["content_type"] = ["application/json"] * len(rows)
    columns["key"] = columns["headers"] = [None] * len(rows)
    return Messages(pa.RecordBatch.from_pydict(columns, MESSAGE))
