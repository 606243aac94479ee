"""A Creek producer under load that is killed at its failpoints, and with its servers: no loss, no repeats, in order."""

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.errors import SnapshotFailed
from tests.support.creek import producer_thread
from tests.support.failpoints import Failpoints
from tests.support.stories.creek_producer_process import producing
from tests.support.stories.creek_story import ACCOUNTS, Load, compare, staged

# A worker of the first producer loses an acknowledgement, and what the producer has published is not committed.
FIRST = ("broker_sink.acknowledged=kill", "sink.written=kill@3 after broker_sink.acknowledged")
# A snapshot that was asked for fails, and the next one takes the second producer down.
SECOND = ("creek.snapshot_opened=error", "creek.snapshot_published=kill")
# An outage of the source may fill some lines of the log, and not more with every try.
MOST_LINES = 99

pytestmark = pytest.mark.timeout(600)


def test_a_producer_that_is_killed_with_its_servers_loses_nothing_repeats_nothing_and_keeps_the_order(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    first, second = (Failpoints(tmp_path, ", ".join(terms)) for terms in (FIRST, SECOND))
    with staged() as stage, ExitStack() as producers:
        producer = producers.enter_context(producing(tmp_path, {**stage.environment, **first.environment}))
        stage.wait_for_slot(producer)
        with Load(stage.source.url, random.Random(11)):
            producer.wait_for_kill()
            assert first.unfired == set()
            # The death of a worker ends the query, and its producer starts another one.
            assert producer.failures >= 1
            producer.start({**stage.environment, **second.environment})
            stage.wait_for_more(producer, 1)
            with pytest.raises(SnapshotFailed, match=r"failpoint creek\.snapshot_opened"):
                stage.read_snapshot(stage.ask_for_snapshot())
            stage.kill("nats")
            stage.wait_for_more(producer, 500)
            said = producer.log.count("\n")
            stage.kill("source")
            stage.wait_for_more(producer, 500)
            assert producer.log.count("\n") - said <= MOST_LINES
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
        "counts", f"creek producer crash: fired {', '.join(sorted(second.fired))}, both servers killed; {outcome}"
    )
    assert second.fired == {
        "creek.snapshot_opened",
        "creek.snapshot_published",
        "sink.written",
        "broker_sink.acknowledged",
    }
    assert outcome.is_exact, outcome
