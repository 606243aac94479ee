"""From the return of a commit to the broker's confirm, at a steady rate of single events, whatever the ones before took."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from benchmarks.comparison import percentile
from benchmarks.outbox_relay.comparison_arms import Arm, Arms, connections, ours, reference, watched
from benchmarks.outbox_relay.reference_relay import ReferenceSettings
from benchmarks.outbox_relay.simulated_requests import note_confirms
from benchmarks.outbox_relay.testbed import Place, Testbed, start_testbed
from benchmarks.report import Bar, Output
from headwater.postgres.connect import AsyncConnection

EVENTS_PER_SECOND: Final = 200
POOL: Final = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    warm_up_seconds: int = 5
    seconds: int = 60


QUICK = Sizes(warm_up_seconds=2, seconds=8)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output) as testbed:
        referred = latencies(testbed, reference(ReferenceSettings()), sizes)
        relayed = latencies(testbed, ours, sizes)
    for name, seconds in (("reference", referred), ("relay", relayed)):
        for percent in (50, 95, 99):
            output.figures[f"latency_{name}_p{percent}_ms"] = round(percentile(seconds, percent) * 1000, 1)
        output.figures[f"latency_{name}_max_ms"] = round(max(seconds) * 1000, 1)
    return [
        Bar("relay_latency_p50_ms", round(percentile(relayed, 50) * 1000, 1), at_most=20),
        Bar("relay_latency_p99_ms", round(percentile(relayed, 99) * 1000, 1), at_most=200),
    ]


def latencies(testbed: Testbed, arms: Arms, sizes: Sizes) -> list[float]:
    confirmed: dict[str, float] = {}
    status = testbed.output.console.status(f"{EVENTS_PER_SECOND} events a second for {sizes.seconds} s")
    with testbed.place() as place, watched(confirmed), status:
        committed = asyncio.run(run(testbed, place, arms, sizes, confirmed))
        place.require(EVENTS_PER_SECOND * (sizes.warm_up_seconds + sizes.seconds))
    measured = committed[EVENTS_PER_SECOND * sizes.warm_up_seconds :]
    return [max(confirmed[id] - at, 0.0) for id, at in measured]


async def run(
    testbed: Testbed, place: Place, arms: Arms, sizes: Sizes, confirmed: dict[str, float]
) -> list[tuple[str, float]]:
    """The id of each event, and when its commit had returned, in order."""
    events = EVENTS_PER_SECOND * (sizes.warm_up_seconds + sizes.seconds)
    async with arms(testbed, place) as arm, connections(testbed.url, POOL) as opened:
        note_confirms(arm, confirmed)
        pool: asyncio.Queue[AsyncConnection] = asyncio.Queue()
        for connection in opened:
            pool.put_nowait(connection)
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            writing = [
                group.create_task(write_at(began + number / EVENTS_PER_SECOND, arm, pool, number))
                for number in range(events)
            ]
        await arm.finish(events)
    return [task.result() for task in writing]


async def write_at(at: float, arm: Arm, pool: "asyncio.Queue[AsyncConnection]", number: int) -> tuple[str, float]:
    """One event, when it is its turn."""
    await asyncio.sleep(max(at - time.monotonic(), 0.0))
    connection = await pool.get()
    try:
        id = await arm.write(connection, number)
        return id, time.monotonic()
    finally:
        pool.put_nowait(connection)
