"""From the return of a commit at the source to the moment that the client hands the change out.

A producer in a process of its own carries single rows, written at a steady rate, to JetStream, and the client follows the
table. The clock is that of one machine.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from benchmarks.comparison import percentile
from benchmarks.creek import statements
from benchmarks.creek.producer import producing, wait_until
from benchmarks.creek.testbed import DATABASE, TABLE, Testbed, start_testbed
from benchmarks.pipeline_process import PipelineProcess
from benchmarks.report import Bar, Output
from headwater import creek
from headwater.brokers.nats import stream_info
from headwater.creek.names import Kind, Names
from headwater.postgres.connect import Connection
from headwater.postgres.statements import execute_sync

ROWS_PER_SECOND = 50


@dataclass(frozen=True, slots=True)
class Sizes:
    warm_up_seconds: int = 15
    seconds: int = 30


QUICK = Sizes(warm_up_seconds=6, seconds=10)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output, {}) as testbed:
        names = testbed.fresh_names()
        with producing(testbed, names) as run:
            seconds = asyncio.run(latencies_of(testbed, names, run, sizes))
            run.stop()
    output.figures.update(
        {
            "client_latency_rows": len(seconds),
            "client_latency_p95_ms": round(percentile(seconds, 95) * 1000, 1),
            "client_latency_max_ms": round(max(seconds) * 1000, 1),
        }
    )
    return [
        Bar("client_latency_p50_ms", round(percentile(seconds, 50) * 1000, 1), at_most=250),
        Bar("client_latency_p99_ms", round(percentile(seconds, 99) * 1000, 1), at_most=600),
    ]


class Follower:
    """A client that follows the table and notes when each row was handed out, by its id."""

    def __init__(self, client: creek.Client, run: PipelineProcess) -> None:
        self.times: dict[object, float] = {}
        self._run, self._task = run, asyncio.create_task(self._follow(client))

    async def wait_for(self, id: int) -> None:
        """The client gives rows in the order of their commits, so all before it are there, too."""
        await asyncio.to_thread(wait_until, lambda: self._task.done() or id in self.times, f"row {id}", self._run)
        if self._task.done():
            # It has no end but an error.
            self._task.result()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _follow(self, client: creek.Client) -> None:
        async with client.stream_wal(DATABASE, TABLE) as changes:
            async for change in changes:
                if change.after is not None:
                    self.times[change.after["id"]] = time.perf_counter()


async def latencies_of(testbed: Testbed, names: Names, run: PipelineProcess, sizes: Sizes) -> list[float]:
    """How long after its commit each row was handed out, without those of the start."""
    console, writer = testbed.bench.console, testbed.bench.connection
    with console.status("starting the producer"), closing(testbed.link()) as link:
        wait_until(lambda: stream_info(link, names.stream(Kind.WAL)) is not None, "its stream", run)
    async with creek.connect(testbed.access, names.root) as client:
        follower = Follower(client, run)
        execute_sync(writer, statements.write_order(1))
        await follower.wait_for(1)
        with console.status(f"warming up for {sizes.warm_up_seconds} s"):
            warm = await asyncio.to_thread(write_steadily, writer, 2, sizes.warm_up_seconds)
            await follower.wait_for(1 + len(warm))
        with console.status(f"{ROWS_PER_SECOND} rows a second for {sizes.seconds} s"):
            first, began = 2 + len(warm), time.perf_counter()
            committed = await asyncio.to_thread(write_steadily, writer, first, sizes.seconds)
            testbed.bench.figures["client_latency_rows_per_s"] = round(len(committed) / (time.perf_counter() - began), 1)
            await follower.wait_for(first + len(committed) - 1)
        await follower.stop()
    return latencies(committed, first, follower.times)


def latencies(committed: Sequence[float], first: int, seen: Mapping[object, float]) -> list[float]:
    """How long after its commit each row, with ids from `first` on, was handed out."""
    return [seen[first + number] - at for number, at in enumerate(committed)]


def write_steadily(writer: Connection, first: int, seconds: int) -> list[float]:
    """Write single rows with ids from `first` on; returns when each commit had returned."""
    began, committed = time.perf_counter(), []
    for number in range(seconds * ROWS_PER_SECOND):
        time.sleep(max(0.0, began + number / ROWS_PER_SECOND - time.perf_counter()))
        execute_sync(writer, statements.write_order(first + number))
        committed.append(time.perf_counter())
    return committed
