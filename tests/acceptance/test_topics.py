"""A topic under everything that goes wrong at once, judged by the record of all appends and deliveries.

Writers roll back, members and a producer are killed at each failpoint, connections are cut, and the server is restarted and
crashes.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stories.topic_faults import Fault, run_with_faults

# Where a process dies: with a batch that is not committed, before a renewal, and with messages whose senders do not know.
KILLS = ("topics.delivered=kill@20", "topics.lease_renewal=kill@20", "topics.appended=kill@20")
FAULTS = ["cut", "restart", "crash"]
# Of the order of faults and of what writers do.
SEED = 16

pytestmark = pytest.mark.timeout(300)

Note = Callable[[str, object], None]


def test_a_run_with_rollbacks_kills_cuts_and_restarts_keeps_every_promise(tmp_path: Path, record_property: Note) -> None:
    faults = [Fault(way, place=0) for way in random.Random(SEED).sample(FAULTS, len(FAULTS))]
    history = run_with_faults(tmp_path, SEED, faults, KILLS)
    record_property("counts", f"topic, {' '.join([*KILLS, *map(str, faults)])}: {history.counts()}")
    assert history.violations() == []
    assert history.log
    assert {one.is_committed for one in history.appends} == {True, False, None}
    # The producer that died behind its commit has messages in the log of which it did not know.
    logged = {(one.key, one.number) for one in history.log}
    assert any(one.is_committed is None and (one.key, one.number) in logged for one in history.appends)
