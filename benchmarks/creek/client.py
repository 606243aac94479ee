"""A stream read by the client, every message decoded, against bare nats-py that reads the same stream and decodes nothing.

Of the ways in which nats-py reads a stream the fastest is compared: an ordered consumer with a callback. Beside it, for the
figures, a pull consumer that fetches as many messages at a time as the client takes. All are connected when their clock
begins, and what the client takes to find the schema counts.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.comparison import in_turns, rate, ratio
from benchmarks.creek.testbed import DATABASE, TABLE, fill_stream, start_testbed, subject_of, write_orders
from benchmarks.report import Bar, Output
from benchmarks.wal_bench import SERVER
from headwater import creek
from headwater.creek.names import Kind, Names

# What the client takes at a time.
BATCH = 2_000
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sizes:
    messages: int = 300_000
    rounds: int = 5


QUICK = Sizes(messages=40_000, rounds=3)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output, SERVER) as testbed, testbed.bench.loaded("client", sizes.messages, write_orders) as load:
        names = fill_stream(testbed, load)

        def arm(read: Callable[[str, Names, int], Awaitable[float]]) -> Callable[[], float]:
            async def turn() -> float:
                return await read(testbed.access.url, names, sizes.messages)

            return lambda: asyncio.run(turn())

        arms = {"client": arm(seconds_of_client), "ordered": arm(bare(read_ordered)), "pull": arm(bare(read_pulled))}
        seconds = in_turns(arms, sizes.rounds, f"reading {sizes.messages:,} messages", output)
    output.figures["client_messages"] = sizes.messages
    output.figures["client_messages_per_s"] = rate(sizes.messages, seconds["client"])
    output.figures["client_nats_ordered_messages_per_s"] = rate(sizes.messages, seconds["ordered"])
    output.figures["client_nats_pull_messages_per_s"] = rate(sizes.messages, seconds["pull"])
    output.figures["client_over_nats_pull"] = ratio(seconds["pull"], seconds["client"])
    return [Bar("client_over_nats", ratio(seconds["ordered"], seconds["client"]), at_least=0.6)]


async def seconds_of_client(url: str, names: Names, count: int) -> float:
    last: object = None
    async with creek.connect(url, names.root) as client:
        began = time.perf_counter()
        async with client.stream_wal(DATABASE, TABLE) as changes:
            for _ in range(count):
                change = await anext(changes)
                last = change.after["id"] if change.after is not None else last
            seconds = time.perf_counter() - began
    assert last == count, f"the last of {count} rows is {last}"
    return seconds


def bare(read: Callable[[Client, Names, int], Awaitable[None]]) -> Callable[[str, Names, int], Awaitable[float]]:
    """The time that nats-py takes, once it is connected."""

    async def seconds(url: str, names: Names, count: int) -> float:
        connection = await nats.connect(url)
        try:
            began = time.perf_counter()
            await read(connection, names, count)
            return time.perf_counter() - began
        finally:
            await connection.close()

    return seconds


async def read_ordered(connection: Client, names: Names, count: int) -> None:
    read, is_done = 0, asyncio.Event()

    async def receive(_message: Msg) -> None:
        nonlocal read
        read += 1
        if read == count:
            is_done.set()

    await connection.jetstream().subscribe(
        subject_of(names), stream=names.stream(Kind.WAL), ordered_consumer=True, cb=receive
    )
    await is_done.wait()


async def read_pulled(connection: Client, names: Names, count: int) -> None:
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)
    stream = connection.jetstream()
    consumer = await stream.pull_subscribe(subject_of(names), stream=names.stream(Kind.WAL), config=config)
    read = 0
    while read < count:
        read += len(await consumer.fetch(min(BATCH, count - read), timeout=_PATIENCE_SECONDS))
