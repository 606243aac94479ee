"""A relay of an outbox that is killed, taken over from, or told to forget what it delivered, as a process of its own."""

import os
import random
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession

from headwater.outbox.checkpoint import reset_checkpoint
from headwater.postgres.connect import connect_sync
from tests.acceptance.running import running
from tests.outbox import (
    NAME,
    Message,
    Producer,
    Queue,
    Relay,
    drop_slot,
    find_checkpoint,
    is_streaming,
    queue_access,
    relay_once,
    relay_settings,
    tally,
    write_relay_file,
)
from tests.rabbitmq import RabbitmqNode
from tests.waiting import eventually

LONG = os.environ.get("HEADWATER_LONG") == "1"
MESSAGES = 100_000 if LONG else 1000
KILLS = 20 if LONG else 2
# How much of a recovery is done when it is killed.
SHARES = (0.1, 0.5, 0.9)
# The least that is allowed, and more messages than that can hold.
BATCH, BATCH_MESSAGES = "64KiB", 450

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(3000 if LONG else 900)]

Note = Callable[[str, object], None]


def _write_file(
    directory: Path, checkpoint: Path, source: str, rabbitmq: RabbitmqNode, queue: Queue, **keys: object
) -> None:
    sink = {"type": "rabbitmq", "url": rabbitmq.url, "routing_key": queue.name}
    write_relay_file(directory, checkpoint, {"url": source, "checkpoint_interval": "1s", **keys}, sink)


def _has_recovered(source: str, messages: float) -> bool:
    found = find_checkpoint(source)
    assert found is not None and found.phase != "streaming", "it was over before it could be killed"
    return found.is_recovering and found.recovered >= messages


@pytest.mark.timeout(3000 if LONG else 900)
def test_a_recovery_that_is_killed_again_and_again_loses_nothing_and_repeats_no_more_than_a_part_each_time(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    part = MESSAGES // 20
    settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue), recovery_rows=part)
    with Producer(source, NAME) as early:
        early.wait_for_more(100)
    relay_once(spark, settings)
    drop_slot(source)
    with Producer(source, NAME, first=100, is_fast=True) as producer:
        producer.wait_for_more(MESSAGES)
    missing = producer.committed
    _write_file(tmp_path, Path(settings.checkpoint), source, rabbitmq, queue, recovery_rows=part)
    with running(tmp_path) as runner, Producer(source, NAME, first=200, writers=1) as late:
        # The checkpoint still says that the lost slot is streamed.
        eventually(lambda: not is_streaming(source), seconds=240)
        for share in SHARES:
            eventually(partial(_has_recovered, source, share * len(missing)), seconds=600)
            runner.kill()
        eventually(lambda: is_streaming(source), seconds=600)
        committed = [*early.committed, *missing, *late.committed]
        queue.wait_for(committed, runner.require_life, seconds=600)
        late.stop()
        committed = [*early.committed, *missing, *late.committed]
        queue.wait_for(committed, runner.require_life)
        assert runner.stop() == 0
    found = tally(committed, queue.arrived)
    record_property("counts", f"outbox, recovery killed at 10, 50 and 90 %, in parts of {part}: {found}")
    found.require_all()
    assert found.repeated <= len(SHARES) * part


def test_a_relay_that_is_killed_while_it_streams_loses_nothing_and_repeats_no_more_than_a_batch_each_time(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    choose = random.Random(KILLS)
    _write_file(tmp_path, tmp_path / "checkpoint", source, rabbitmq, queue, max_bytes=BATCH, lane_by="key")
    with running(tmp_path) as runner:
        eventually(lambda: is_streaming(source), seconds=240)
        with Producer(source, NAME) as producer:
            for _ in range(KILLS):
                queue.wait_for_more(MESSAGES // 10)
                Event().wait(choose.random())
                runner.kill()
            queue.wait_for_more(MESSAGES // 10)
        queue.wait_for(producer.committed, runner.require_life, seconds=600)
        assert runner.stop() == 0
    found = tally(producer.committed, queue.arrived)
    record_property("counts", f"outbox, killed {KILLS} times while it streams, in batches of {BATCH}: {found}")
    found.require_all()
    assert found.repeated <= KILLS * BATCH_MESSAGES


def test_a_second_run_stands_by_and_takes_over_from_one_that_is_killed(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    directories = tmp_path / "one", tmp_path / "other"
    for directory in directories:
        directory.mkdir()
        _write_file(directory, tmp_path / "checkpoint", source, rabbitmq, queue, max_bytes=BATCH)
    with running(directories[0]) as one:
        eventually(lambda: is_streaming(source), seconds=240)
        epoch = _epoch(source)
        with running(directories[1]) as other, Producer(source, NAME, writers=2) as producer:
            eventually(lambda: "ready to take over" in other.log, seconds=180)
            queue.wait_for_more(100)
            # The one that stands by leaves the checkpoint to the one that runs.
            assert _epoch(source) == epoch
            one.end()
            eventually(lambda: _epoch(source) > epoch, seconds=240)
            queue.wait_for_more(100)
            producer.stop()
            queue.wait_for(producer.committed, other.require_life)
            assert other.stop() == 0
    found = tally(producer.committed, queue.arrived)
    record_property("counts", f"outbox, taken over from a run that was killed: {found}")
    found.require_all()
    assert found.repeated <= BATCH_MESSAGES


def _epoch(source: str) -> int:
    found = find_checkpoint(source)
    assert found is not None
    return found.epoch


def test_a_checkpoint_that_is_reset_ends_the_run_and_the_next_one_delivers_everything_again(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue))
    with Relay(spark, settings) as relay:
        eventually(lambda: is_streaming(source), seconds=240)
        with Producer(source, NAME) as before:
            queue.wait_for_more(200)
        queue.wait_for(before.committed, relay.require_life)
        with closing(connect_sync(source)) as connection:
            reset_checkpoint(connection, NAME)
        with Producer(source, NAME, first=100) as after:
            after.wait_for_more(100)
        assert "is not this run's any more" in str(relay.error())
    reset_at = len(queue.arrived)
    relay_once(spark, settings)
    committed: list[Message] = before.committed + after.committed
    eventually(lambda: len(queue.arrived) >= reset_at + len(committed), seconds=30)
    found, again = tally(committed, queue.arrived), tally(committed, queue.arrived[reset_at:])
    record_property("counts", f"outbox, checkpoint reset while running: {found}; after the reset: {again}")
    found.require_all()
    again.require_all()
    assert again.repeated == 0
