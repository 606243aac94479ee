"""What is lost and repeated when a full queue refuses one event in ten, with real nacks, while the others are taken.

Lost is what the table calls published and no queue has. Repeated is what a queue has more than once. What a queue refused
may not be called published; that it is sent later, once there is room, is what the tests of the relay show.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Final

from benchmarks.outbox_relay import statements
from benchmarks.outbox_relay.comparison_arms import Arms, connections, in_parallel, ours, reference
from benchmarks.outbox_relay.reference_relay import UPSTREAM, Reference, ReferenceSettings
from benchmarks.outbox_relay.testbed import FULL_TYPE, TYPE, Place, Testbed, start_testbed
from benchmarks.polling import wait_until
from benchmarks.report import Bar, Output
from headwater.postgres.connect import AsyncConnection
from headwater.postgres.statements import Statement, fetch_sync

CONCURRENT: Final = 16
ONE_IN: Final = 10
_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Kept:
    lost: int
    repeated: int
    published: int


def measure(quick: bool, output: Output) -> list[Bar]:
    events = 1_000 if quick else 10_000
    arms: dict[str, tuple[Arms, Statement[str]]] = {
        "upstream": (reference(UPSTREAM), statements.read_reference_published()),
        "reference": (reference(ReferenceSettings()), statements.read_reference_published()),
        "relay": (ours, statements.read_published()),
    }
    output.figures["faults_events"] = events
    output.figures["faults_refused"] = events // ONE_IN
    with start_testbed(output) as testbed:
        found = {name: count(testbed, arm, published, events) for name, (arm, published) in arms.items()}
        for name, kept in found.items():
            output.figures[f"faults_{name}_lost"] = kept.lost
            output.figures[f"faults_{name}_repeated"] = kept.repeated
            output.figures[f"faults_{name}_published"] = kept.published
    return [Bar("relay_lost", found["relay"].lost, at_most=0)]


def count(testbed: Testbed, arms: Arms, published: Statement[str], events: int) -> Kept:
    with testbed.place(has_full_queue=True) as place, testbed.output.console.status(f"{events:,} events, some refused"):
        asyncio.run(run(testbed, place, arms, events))
        said = fetch_sync(testbed.connection, published)
        stored = Counter(place.ids())
    return Kept(len(set(said) - stored.keys()), sum(times - 1 for times in stored.values()), len(said))


async def run(testbed: Testbed, place: Place, arms: Arms, events: int) -> None:
    numbers = iter(range(events))
    async with arms(testbed, place) as arm, connections(testbed.url, CONCURRENT) as opened:

        async def write(connection: AsyncConnection) -> None:
            for number in numbers:
                await arm.write(connection, number, TYPE if number % ONE_IN else FULL_TYPE)

        await in_parallel(write, opened)
        if isinstance(arm, Reference):
            await arm.finish(events)
        else:
            await asyncio.to_thread(wait_for_published, testbed, events - events // ONE_IN)


def wait_for_published(testbed: Testbed, wanted: int) -> None:
    """What the full queue refuses is never done with, so only the others are waited for."""
    wait_until(
        lambda: len(fetch_sync(testbed.connection, statements.read_published())) >= wanted,
        f"{wanted} events to be published",
        _WAIT_SECONDS,
    )
