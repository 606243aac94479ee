"""Our own relay: a pipeline from the outbox to a broker, on a Spark session that all turns share."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.outbox_wal.statements import sender_state
from benchmarks.outbox_wal.testbed import Testbed
from benchmarks.slot_clock import SlotClock
from headwater.brokers.registry import BrokerAccess
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.spark.pipeline import Pipeline
from headwater.spark.settings import BrokerSinkSettings, OutboxLanes, OutboxSettings, PipelineSettings
from headwater.spark.sinks.build import build_sinks

NAME: Final = "relay"
# Reports come about once a second; looking more often would take from what is measured.
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Relay:
    """A pipeline that delivers what has been written since it last did."""

    spark: SparkSession
    settings: PipelineSettings

    def deliver(self, access: BrokerAccess) -> "Delivered":
        """Everything that has committed by now."""
        source = self.settings.source
        with SlotClock(source.url, source.slot) as clock, SenderWatch(source.url, source.slot) as watch:
            began = time.perf_counter()
            pipeline_to(self, access, Event()).run(once=True)
        return Delivered(unix_time(clock.started), unix_time(began), len(watch.replies))


@dataclass(frozen=True, slots=True)
class Delivered:
    """When the slot was first read, and when the run began, in seconds of Unix time; and how often it reported."""

    read_at: float
    began_at: float
    status_packets: int


@contextmanager
def relaying(testbed: Testbed, spark: SparkSession, access: BrokerAccess, name: str = NAME) -> Iterator[Relay]:
    """A relay that has run once, so that its slot is there; what is in the outbox by now is delivered to `access`."""
    with TemporaryDirectory() as directory:
        relay = Relay(spark, settings_of(testbed.url, access, str(Path(directory, "checkpoint")), name))
        pipeline_to(relay, access, Event()).run(once=True)
        yield relay


def settings_of(
    url: str, access: BrokerAccess, checkpoint: str, name: str = NAME, lane_by: OutboxLanes = OutboxLanes.OUTBOX
) -> PipelineSettings:
    """As a pipeline file gives it, with no more said than whence and where to."""
    return PipelineSettings(
        name=name,
        source=OutboxSettings(url=url, slot=name, publication=name, lane_by=lane_by),
        sinks=(BrokerSinkSettings(name="broker", access=access),),
        checkpoint=checkpoint,
        state_url=url,
    )


def pipeline_to(relay: Relay, access: BrokerAccess, stopping: Event) -> Pipeline:
    settings = replace(relay.settings, sinks=(BrokerSinkSettings(name="broker", access=access),))
    return Pipeline(relay.spark, settings, build_sinks(settings), stopping)


class SenderWatch:
    """Watches the reader of a slot while in use: when it reported to the server, and how much WAL the slot kept at most.

    Reports that follow each other within a tenth of a second are seen as one.
    """

    def __init__(self, url: str, slot: str) -> None:
        self._url, self._slot, self._leaving = url, slot, Event()
        self._thread = Thread(target=self._watch, name=f"watch {slot}", daemon=True)
        self.replies: set[datetime] = set()
        self.retained: list[int] = []

    def __enter__(self) -> "SenderWatch":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._leaving.set()
        self._thread.join()

    def _watch(self) -> None:
        with connect_sync(self._url) as connection:
            while not self._leaving.wait(_LOOK_SECONDS):
                for state in fetch_sync(connection, sender_state(self._slot)):
                    self.retained.append(state.retained)
                    if state.reply_time is not None:
                        self.replies.add(state.reply_time)


def unix_time(at: float) -> float:
    """A time of `perf_counter` by the clock on the wall."""
    return time.time() - time.perf_counter() + at
