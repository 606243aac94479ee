"""A Creek producer under load that is killed at its failpoints, and with its servers: no loss, no repeats, in order."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater import creek
from headwater.errors import HeadwaterError, SnapshotFailed
from tests.support.creek import producer_thread
from tests.support.failpoints import Failpoints
from tests.support.stories.creek_producer_process import Producer, producing
from tests.support.stories.creek_story import ACCOUNTS, Load, Stage, compare, staged

# A worker of the first producer loses an acknowledgement. The producer ends with a batch that is published and not
# committed, when it has opened a snapshot that was asked for meanwhile.
FIRST = (
    "broker_sink.acknowledged=kill",
    "sink.written=sleep(60)@3 after broker_sink.acknowledged",
    "creek.snapshot_opened=kill after sink.written",
)
# A snapshot that was asked for fails, and the next one takes the second producer down.
SECOND = ("creek.snapshot_opened=error", "creek.snapshot_published=kill")
# An outage of the source may fill some lines of the log, and not more with every try.
MOST_LINES = 99

pytestmark = pytest.mark.timeout(600)


def test_a_producer_that_is_killed_with_its_servers_loses_nothing_repeats_nothing_and_keeps_the_order(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    first, second = (_arm(tmp_path / name, terms) for name, terms in (("1", FIRST), ("2", SECOND)))
    with staged() as stage, ExitStack() as producers:
        producer = producers.enter_context(producing(tmp_path, {**stage.environment, **first.environment}))
        stage.wait_for_slot(producer)
        with Load(stage.source.url, random.Random(11)):
            first.wait_for("sink.written")
            asyncio.run(_ask_until_killed(stage, producer))
            assert first.unfired == set()
            # The death of a worker ends the query, and its producer starts another one.
            assert producer.failures >= 1
            producer.start({**stage.environment, **second.environment})
            stage.wait_for_more(producer, 1)
            with pytest.raises(SnapshotFailed, match=r"failpoint creek\.snapshot_opened"):
                stage.read_snapshot(stage.ask_for_snapshot())
            stage.kill("nats")
            stage.wait_for_more(producer, 500)
            before_outage = len(producer.log)
            stage.kill("source")
            stage.wait_for_more(producer, 500)
            # Its lease is lost with the server: it stands by until it has it again, and nobody answers requests meanwhile.
            producer.wait_until(lambda: ": running" in producer.log[before_outage:].partition(": standing by")[2])
            assert producer.log[before_outage:].count("\n") <= MOST_LINES
            broken = stage.ask_for_snapshot()
            producer.wait_for_kill()
            # Every message is there but the end, so that no reader takes it for complete.
            _header, *rows = stage.messages_of(broken)
            assert len(rows) == ACCOUNTS
            before = stage.stored()
            # Nothing of the last producer is killed, so it is a thread of the tests.
            last = producers.enter_context(producer_thread.producing(spark, stage.environment, tmp_path / "checkpoint"))
            last.wait_until(lambda: stage.stored() > before, seconds=200)
            assert stage.read_snapshot(stage.ask_for_snapshot()) == {*range(1, ACCOUNTS + 1)}
        outcome = compare(stage)
        last.require_life()
    record_property(
        "counts",
        f"creek producer crash: fired {', '.join(sorted(first.fired | second.fired))}, both servers killed; {outcome}",
    )
    assert second.unfired == set()
    assert outcome.is_exact, outcome


def _arm(directory: Path, terms: Sequence[str]) -> Failpoints:
    """Arm points that fire once for this directory."""
    directory.mkdir()
    return Failpoints(directory, ", ".join(terms))


async def _ask_until_killed(stage: Stage, producer: Producer) -> None:
    """Ask for a snapshot whose producer is killed before any message of it is published."""
    async with creek.connect(stage.nats.url) as client:
        asked = asyncio.create_task(client.snapshot("postgres", "public.account"))
        await asyncio.to_thread(producer.wait_for_kill)
        asked.cancel()
        # The producer may have named the topic before its end, or not.
        with pytest.raises((asyncio.CancelledError, HeadwaterError)):
            await asked
        assert await client.list_snapshots("postgres", "public.account") == []
