"""The same transactions by simulated requests: each waits for a free connection, and the next comes when one was answered.

A request is what is left of a small web application: its body is parsed, its business row and event are committed on a
connection of a pool, and its answer is written. The times of requests and from commit to confirm are beside the rates.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Final

from benchmarks.comparison import percentile
from benchmarks.outbox_relay.comparison_arms import Arm, Arms, connections, ours, reference, watched
from benchmarks.outbox_relay.reference_relay import Reference, ReferenceSettings
from benchmarks.outbox_relay.testbed import Place, Testbed, start_testbed, text_of
from benchmarks.report import Bar, Output
from headwater.postgres.connect import AsyncConnection

POOL: Final = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many requests, by how many come at the same time."""

    events: dict[int, int] = field(default_factory=lambda: {1: 5_000, 8: 20_000, 64: 50_000})


QUICK = Sizes({1: 500, 8: 1_500, 64: 2_000})


@dataclass(frozen=True, slots=True)
class Served:
    per_second: float
    # Of each request, and from the return of its commit to the broker's confirm.
    request_seconds: list[float]
    confirm_seconds: list[float]


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output) as testbed:
        for concurrent, events in sizes.events.items():
            for name, arms in (("reference", reference(ReferenceSettings())), ("relay", ours)):
                with output.console.status(f"{events:,} requests, {concurrent} at a time, through the {name}"):
                    tell(output, f"requests_{concurrent}_{name}", serve(testbed, arms, events, concurrent))
    return []


def tell(output: Output, name: str, served: Served) -> None:
    output.figures[f"{name}_per_s"] = round(served.per_second)
    for what, seconds in (("request", served.request_seconds), ("confirm", served.confirm_seconds)):
        for percent in (50, 95, 99):
            output.figures[f"{name}_{what}_p{percent}_ms"] = round(percentile(seconds, percent) * 1000, 1)


def serve(testbed: Testbed, arms: Arms, events: int, concurrent: int) -> Served:
    confirmed: dict[str, float] = {}
    with testbed.place() as place, watched(confirmed):
        served = asyncio.run(run(testbed, place, arms, events, concurrent, confirmed))
        place.require(events)
    return served


async def run(  # noqa: PLR0913 - a turn has as many parts
    testbed: Testbed, place: Place, arms: Arms, events: int, concurrent: int, confirmed: dict[str, float]
) -> Served:
    numbers, committed = iter(range(events)), dict[str, float]()
    taken: list[float] = []
    async with arms(testbed, place) as arm, connections(testbed.url, min(POOL, concurrent)) as opened:
        note_confirms(arm, confirmed)
        pool: asyncio.Queue[AsyncConnection] = asyncio.Queue()
        for connection in opened:
            pool.put_nowait(connection)

        async def client() -> None:
            for number in numbers:
                began = time.monotonic()
                id = await answer(arm, pool, number)
                taken.append(time.monotonic() - began)
                committed[id] = time.monotonic()
                # So that those who wait for a connection are next.
                await asyncio.sleep(0)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrent)))
        await arm.finish(events)
        seconds = time.perf_counter() - began
    return Served(events / seconds, taken, [max(confirmed[id] - at, 0.0) for id, at in committed.items()])


async def answer(arm: Arm, pool: "asyncio.Queue[AsyncConnection]", number: int) -> str:
    """One request."""
    body = json.loads(text_of(number))
    connection = await pool.get()
    try:
        id = await arm.write(connection, body["id"])
    finally:
        pool.put_nowait(connection)
    json.dumps({"id": body["id"], "event": id})
    return id


def note_confirms(arm: Arm, confirmed: dict[str, float]) -> None:
    """The reference notes them by itself."""
    if isinstance(arm, Reference):
        arm.confirmed = confirmed
