"""A relay of an outbox that is killed at each of its points, taken over from, or told to forget what it delivered."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.cli.pipeline_file.load import load
from headwater.outbox.checkpoint import reset_checkpoint
from headwater.postgres.connect import connect_sync
from headwater.spark.pipeline import prepare
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.failpoints import Failpoints
from tests.support.stories.outbox_story import (
    NAME,
    Message,
    Producer,
    Queue,
    Relay,
    find_checkpoint,
    held_open,
    is_streaming,
    messages_of,
    publish_messages,
    queue_access,
    relay_once,
    relay_settings,
    tally,
    write_relay_file,
)
from tests.support.stories.pipeline_process import running
from tests.support.waiting import eventually

# How many messages a chunk of the recovery has, and how many chunks there are.
CHUNK, CHUNKS = 50, 6
# In the recovery: a worker, the planner, and the driver, with which the first run ends in the fourth chunk.
RECOVERING = ("broker_sink.acknowledged=kill", "outbox.recovery_chunk=kill@2", "sink.written=kill@4")
# The run that takes over has three chunks left. While it streams: the planner twice, and some batches later the driver.
STREAMING = (
    "source.partitions=kill@5",
    "outbox.checkpoint_save=kill after source.partitions",
    "batch.begin=kill@3 after outbox.checkpoint_save",
)
POINTS = {term.partition("=")[0] for term in (*RECOVERING, *STREAMING)}

pytestmark = pytest.mark.timeout(600)

Note = Callable[[str, object], None]


def _epoch(source: str) -> int:
    found = find_checkpoint(source)
    assert found is not None
    return found.epoch


def test_a_relay_that_is_killed_at_each_of_its_points_loses_nothing_repeats_two_chunks_and_is_taken_over(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    first, second = Failpoints(tmp_path, ", ".join(RECOVERING)), Failpoints(tmp_path, ", ".join(STREAMING))
    settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue))
    directories = tmp_path / "one", tmp_path / "other"
    keys = {"url": source, "checkpoint_interval": "1s", "recovery_rows": CHUNK}
    for directory in directories:
        directory.mkdir()
        sink = {"type": "rabbitmq", "url": rabbitmq.url, "routing_key": queue.name}
        write_relay_file(directory, Path(settings.checkpoint), keys, sink)
    # The slot is there, and nothing of the table is delivered.
    prepare(settings)
    prepared = _epoch(source)
    early = [messages_of(f"early-{number}", CHUNK) for number in range(CHUNKS - 1)]
    with closing(connect_sync(source)) as connection:
        for each in early:
            with connection.transaction():
                publish_messages(connection, NAME, each)
    held = messages_of("held", CHUNK)
    with ExitStack() as runs:
        # The recovery waits for older transactions, and so here for the second run.
        with held_open(source, NAME, held):
            one = runs.enter_context(running(directories[0], first.environment))
            eventually(lambda: _epoch(source) > prepared, seconds=240)
            epoch = _epoch(source)
            other = runs.enter_context(running(directories[1], second.environment))
            eventually(lambda: "ready to take over" in other.log, seconds=240)
            assert _epoch(source) == epoch, "a run that stands by leaves the checkpoint to the one that runs"
        one.wait_for_kill(240)
        assert second.fired >= {term.partition("=")[0] for term in RECOVERING}
        eventually(lambda: _epoch(source) > epoch, seconds=240)
        with Producer(source, NAME, paced_by=queue) as producer:
            other.wait_for_kill(240)
            assert second.fired == POINTS
            # The death of the process is the point, and which one goes on is not.
            last = runs.enter_context(Relay(spark, load(directories[1] / "headwater.toml", {})))
            queue.wait_for_more(50)
        committed = [*held, *(message for each in early for message in each), *producer.committed]
        queue.wait_for(committed, last.require_life)
    found = tally(committed, queue.arrived)
    record_property("counts", f"outbox, killed at {', '.join(sorted(POINTS))}, in chunks of {CHUNK}: {found}")
    found.require_all()
    assert found.repeated <= 2 * CHUNK


def test_a_checkpoint_that_is_reset_ends_the_run_and_the_next_one_delivers_everything_again(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue))
    with Relay(spark, settings) as relay:
        eventually(lambda: is_streaming(source), seconds=240)
        with Producer(source, NAME) as before:
            before.wait_for_more(200)
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
