"""The picture of resilience: what an application commits and what its broker confirms, around an outage of the broker.

`python -m benchmarks.outbox_relay.outage --seconds 60 --picture docs/images/relay-outage.svg` stops a private RabbitMQ in
the middle of a run, for so long, counts what was lost and repeated, and draws both counts over time.
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
import typer

from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.embedded import EmbeddedPostgres
from headwater.outbox import OutboxRelay, RelaySettings
from headwater.outbox.checkpoint import prepare_outbox
from tests.support.brokers.rabbitmq_node import RabbitmqNode

QUEUE: Final = "events"
WRITERS: Final = 4
# Some 250 transactions/s of all writers together: a busy shop, and few enough that the outage shows.
PAUSE_SECONDS: Final = 0.014
SAMPLE_SECONDS: Final = 0.25
# Before and after the outage, as parts of it.
AROUND: Final = 1 / 3


@dataclass(slots=True)
class Outage:
    """The counts at each time, in seconds since the beginning, and when the broker was away."""

    times: list[float] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)
    away: tuple[float, float] = (0.0, 0.0)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seconds", type=float, default=5.0, help="how long the broker is away")
    options.add_argument("--picture", type=Path, help="where to draw it, as an SVG")
    given = options.parse_args()
    with RabbitmqNode() as node, EmbeddedPostgres() as server:
        prepare_outbox(server.url)
        with node.channel() as channel:
            channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        outage = asyncio.run(run(server.url, node, given.seconds))
        with closing(psycopg.connect(server.url)) as connection:
            written = {str(id_) for (id_,) in connection.execute("select id from headwater.outbox_message")}
        arrived = Counter(arrivals(node))
    typer.echo(
        f"committed {len(written)}, arrived {arrived.total()}, lost {len(written - arrived.keys())}, "
        f"repeated {arrived.total() - len(arrived)}, away for {outage.away[1] - outage.away[0]:.1f} s"
    )
    if given.picture is not None:
        given.picture.write_text(drawn(outage))


async def run(url: str, node: RabbitmqNode, seconds: float) -> Outage:
    outage, began = Outage(), time.monotonic()
    access = RabbitmqAccess(url=node.url, routing_key=QUEUE)
    async with OutboxRelay(url, access, RelaySettings(retention=None)) as relay:
        committed: list[int] = []
        stopping = asyncio.Event()
        tasks = [asyncio.create_task(write(url, relay, committed, stopping)) for _ in range(WRITERS)]
        sampling = asyncio.create_task(sample(outage, relay, committed, began))
        await asyncio.sleep(seconds * AROUND)
        stopped = time.monotonic() - began
        await asyncio.to_thread(node.control, "stop_app")
        await asyncio.sleep(seconds)
        await asyncio.to_thread(node.control, "start_app")
        outage.away = (stopped, time.monotonic() - began)
        await asyncio.sleep(seconds * AROUND)
        stopping.set()
        await asyncio.gather(*tasks)
        async with asyncio.timeout(60):
            while relay.counts.published < len(committed):  # noqa: ASYNC110 - a count gives no signal
                await asyncio.sleep(SAMPLE_SECONDS)
        await asyncio.sleep(2 * SAMPLE_SECONDS)
        sampling.cancel()
    return outage


async def write(url: str, relay: OutboxRelay, committed: list[int], stopping: asyncio.Event) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while not stopping.is_set():
            async with relay.transaction(connection) as tx:
                await tx.publish("orders", "OrderCreated", {"id": len(committed), "name": "a lamp"})
            committed.append(1)
            await asyncio.sleep(PAUSE_SECONDS)


async def sample(outage: Outage, relay: OutboxRelay, committed: list[int], began: float) -> None:
    while True:
        outage.times.append(time.monotonic() - began)
        outage.committed.append(len(committed))
        outage.confirmed.append(relay.counts.published)
        await asyncio.sleep(SAMPLE_SECONDS)


def arrivals(node: RabbitmqNode) -> list[str]:
    found: list[str] = []
    with node.channel() as channel:
        while (got := channel.basic_get(QUEUE, auto_ack=True))[0] is not None:
            found.append(str(got[1].message_id))
    return found


def drawn(outage: Outage) -> str:
    """Both counts over time, as an SVG that looks right on light and on dark pages."""
    width, height, left, below = 760, 300, 70, 44
    longest, most = outage.times[-1], max(outage.committed[-1], 1)

    def x(seconds: float) -> float:
        return left + seconds / longest * (width - left - 20)

    def y(count: float) -> float:
        return height - below - count / most * (height - below - 30)

    def line(counts: Sequence[int], colour: str, dashes: str = "") -> str:
        points = " ".join(f"{x(at):.1f},{y(count):.1f}" for at, count in zip(outage.times, counts, strict=True))
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"{dashes}/>'

    def text(at: tuple[float, float], words: str, anchor: str = "middle", colour: str = "#808080") -> str:
        return f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    begin, end = outage.away
    seconds_step, count_step = step(longest), step(most)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect x="{x(begin):.1f}" y="20" width="{x(end) - x(begin):.1f}" height="{height - below - 20}" fill="#c0392b" '
        'fill-opacity="0.12"/>',
        text(((x(begin) + x(end)) / 2, 34), f"the broker is away for {end - begin:.0f} s", colour="#c0392b"),
        *(
            f'<line x1="{left}" x2="{width - 20}" y1="{y(count):.1f}" y2="{y(count):.1f}" stroke="#808080" '
            f'stroke-opacity="0.25"/>{text((left - 8, y(count) + 4), f"{count:,}", "end")}'
            for count in range(0, most + 1, count_step)
        ),
        *(text((x(at), height - below + 18), f"{at} s") for at in range(0, int(longest) + 1, seconds_step)),
        line(outage.committed, "#7f8c8d", ' stroke-dasharray="6 3"'),
        line(outage.confirmed, "#00897b"),
        text((left + 14, 48), "- - committed by the application", "start", "#7f8c8d"),
        text((left + 14, 66), "— confirmed by the broker", "start", "#00897b"),
        text((width / 2, height - 6), "events, over the time of the run"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def step(most: float) -> int:
    """A round number of which there are some up to the most."""
    sizes = (size * int(10**power) for power in range(9) for size in (1, 2, 5))
    return next(size for size in sizes if most / size <= 8)


if __name__ == "__main__":
    main()
