"""A Creek producer under load that is killed at its failpoints, and with its servers: no loss, no repeats, in order."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.errors import SnapshotFailed
from tests.support.failpoints import Failpoints
from tests.support.stories.creek_producer_process import producing
from tests.support.stories.creek_story import ACCOUNTS, Load, compare, staged

# A snapshot that was asked for fails, and the next one takes its producer down.
SNAPSHOTS = ("creek.snapshot_opened=error", "creek.snapshot_published=kill")
# What the second producer has published is not committed, and a worker of the third loses the acknowledgement.
SECOND, THIRD = "sink.written=kill@3", "broker_sink.acknowledged=kill@2"
# An outage of the source may fill some lines of the log, and not more with every try.
MOST_LINES = 99


@pytest.mark.timeout(600)
def test_a_producer_that_is_killed_with_its_servers_loses_nothing_repeats_nothing_and_keeps_the_order(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    first, second, third = (Failpoints(tmp_path, armed) for armed in (", ".join(SNAPSHOTS), SECOND, THIRD))
    with staged() as stage, producing(tmp_path, {**stage.environment, **first.environment}) as producer:
        stage.wait_for_slot(producer)
        with Load(stage.source.url, random.Random(11)):
            stage.wait_for_more(producer, 1)
            with pytest.raises(SnapshotFailed, match=r"failpoint creek\.snapshot_opened"):
                stage.read_snapshot(stage.ask_for_snapshot())
            broken = stage.ask_for_snapshot()
            producer.wait_for_kill()
            # Every message is there but the end, so that no reader takes it for complete.
            _header, *rows = stage.messages_of(broken)
            assert len(rows) == ACCOUNTS
            producer.start({**stage.environment, **second.environment})
            producer.wait_for_kill()
            failures = producer.failures
            producer.start({**stage.environment, **third.environment})
            # The death of a worker ends the query, and its producer starts another one.
            producer.wait_until(lambda: producer.failures > failures, seconds=200)
            stage.wait_for_more(producer, 1)
            assert stage.read_snapshot(stage.ask_for_snapshot()) == {*range(1, ACCOUNTS + 1)}
            stage.kill("nats")
            stage.wait_for_more(producer, 500)
            said = producer.log.count("\n")
            stage.kill("source")
            stage.wait_for_more(producer, 500)
            assert producer.log.count("\n") - said <= MOST_LINES
        outcome = compare(stage)
        assert producer.stop() == 0, producer.log[-3000:]
    record_property(
        "counts", f"creek producer crash: fired {', '.join(sorted(third.fired))}, both servers killed; {outcome}"
    )
    assert third.fired == {
        "creek.snapshot_opened",
        "creek.snapshot_published",
        "sink.written",
        "broker_sink.acknowledged",
    }
    assert outcome.is_exact, outcome
