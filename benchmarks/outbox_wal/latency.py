"""From the return of a commit to the moment that JetStream stored its message, at a steady rate of single events.

The clock is that of one machine. It has no bar; what the slot keeps meanwhile is among the figures.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Event, Thread

from pyspark.sql import SparkSession

from benchmarks.comparison import percentile
from benchmarks.outbox_wal.relay import Relay, SenderWatch, pipeline_to, relaying
from benchmarks.outbox_wal.statements import write_message
from benchmarks.outbox_wal.testbed import Target, Testbed, stored_in
from benchmarks.polling import wait_until
from headwater.brokers.nats import Link
from headwater.brokers.nats.streams import call, parse_time
from headwater.postgres.connect import Connection
from headwater.postgres.statements import fetch_sync

NAME = "latency"
EVENTS_PER_SECOND = 50
_PATIENCE_SECONDS = 120.0
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sizes:
    warm_up_seconds: int = 10
    seconds: int = 30


QUICK = Sizes(warm_up_seconds=3, seconds=8)


def measure(testbed: Testbed, spark: SparkSession, sizes: Sizes) -> None:
    testbed.empty()
    status = testbed.output.console.status(f"{EVENTS_PER_SECOND} events a second for {sizes.seconds} s")
    with (
        testbed.target() as first,
        relaying(testbed, spark, first.messages, NAME) as relay,
        testbed.target() as target,
        running(relay, target),
        status,
    ):
        warm = write_steadily(testbed.connection, sizes.warm_up_seconds)
        wait_for(target, len(warm))
        with SenderWatch(testbed.url, NAME) as watch:
            committed = write_steadily(testbed.connection, sizes.seconds)
        wait_for(target, len(warm) + len(committed))
        seconds = latencies(committed, stored_times(target, len(warm) + 1, len(committed)))
    testbed.output.figures.update(
        {
            "latency_events": len(seconds),
            **{f"latency_p{percent}_ms": round(percentile(seconds, percent) * 1000, 1) for percent in (50, 95, 99)},
            "latency_status_packets": len(watch.replies),
            "latency_retained_wal_mb": round(max(watch.retained) / _MIB, 2),
        }
    )


@contextmanager
def running(relay: Relay, target: Target) -> Iterator[None]:
    """A pipeline that delivers for as long as it is in use."""
    stopping = Event()
    thread = Thread(target=pipeline_to(relay, target.messages, stopping).run, name="pipeline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(_PATIENCE_SECONDS)


def write_steadily(writer: Connection, seconds: int) -> list[float]:
    """Write single events; returns when each commit had returned, in seconds of Unix time."""
    began, committed = time.perf_counter(), []
    for number in range(seconds * EVENTS_PER_SECOND):
        time.sleep(max(0.0, began + number / EVENTS_PER_SECOND - time.perf_counter()))
        fetch_sync(writer, write_message(number))
        committed.append(time.time())
    return committed


def wait_for(target: Target, messages: int) -> None:
    with closing(Link(target.access)) as link:
        wait_until(lambda: stored_in(link, target.stream).messages >= messages, f"{messages} messages", _PATIENCE_SECONDS)


def stored_times(target: Target, first: int, count: int) -> list[float]:
    """When messages were stored, by their place in the stream, which is that of their commit."""
    with closing(Link(target.access)) as link:
        answers: list[Mapping[str, Mapping[str, str]]] = [
            call(link, f"STREAM.MSG.GET.{target.stream}", {"seq": first + number}) for number in range(count)
        ]
    return [parse_time(answer["message"]["time"]).timestamp() for answer in answers]


def latencies(committed: Sequence[float], stored: Sequence[float]) -> list[float]:
    return [after - before for before, after in zip(committed, stored, strict=True)]
