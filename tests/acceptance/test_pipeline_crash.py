"""A pipeline whose parts are killed under load, each at its failpoint: the target ends equal to the source, row by row.

Killed are the driver, Python workers of Spark's, the planner that reads the slot, and both servers. Lanes are by table at
first, and by key after the checkpoint directory was lost as well.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.embedded import EmbeddedPostgres
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import postgres_settings
from tests.support.stories.account_load import NAMES, AccountLoad, create_accounts, steps_back, wait_for_entries
from tests.support.stories.pipeline_process import kill, running, settle, write_file
from tests.support.waiting import eventually

# What comes back by itself, in whichever process of the driver it happens.
PARTS = (
    "source.partitions=kill@4",
    "slot.confirm=kill@3",
    "postgres_sink.applied=kill@2",
    "postgres_sink.committed=kill@3",
    "pipeline.lease_renewal=error@5",
)
# The first process of the driver ends at the one, and the second at the other.
DRIVER = ("sink.written=kill@5", "batch.begin=kill@5")
POINTS = {term.partition("=")[0] for term in (*PARTS, *DRIVER)}


@pytest.mark.timeout(300)
def test_a_pipeline_whose_parts_are_killed_under_load_ends_with_the_target_equal_to_the_source(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    first, second, last = (
        Failpoints(tmp_path, ", ".join(terms)) for terms in ((*PARTS, DRIVER[0]), (*PARTS, DRIVER[1]), PARTS)
    )
    with EmbeddedPostgres(postgres_settings(18)) as source, EmbeddedPostgres(postgres_settings(18)) as target:
        create_accounts(source.url, target.url)

        def write(lane_by: str) -> None:
            urls = {"source": source.url, "target": target.url}
            tables = [f"public.{name}" for name in NAMES]
            write_file(tmp_path, "crash", **urls, tables=tables, lane_by=lane_by, max_bytes="1MiB")

        write("table")
        with running(tmp_path, first.environment) as runner:
            with AccountLoad(source.url, target.url, random.Random(7)):
                runner.wait_for_kill()
                assert "sink.written" in last.fired
                # From the same checkpoint directory: the batch comes again, and the sink has it.
                runner.start(second.environment)
                runner.wait_for_kill()
                assert "batch.begin" in last.fired
                shutil.rmtree(tmp_path / "checkpoints")
                write("key")
                runner.start(last.environment)
                for victim in ("source", "target"):
                    wait_for_entries(target.url, 100, runner.require_life)
                    kill(victim, runner, source, target)
                eventually(lambda: last.fired == POINTS, seconds=120)
                wait_for_entries(target.url, 100, runner.require_life)
            found = settle(runner, source.url, target.url, NAMES)
            assert runner.stop() == 0
        backwards = steps_back(target.url)
        record_property(
            "counts",
            f"pipeline crash: killed at {', '.join(sorted(last.fired))}, and both servers; {found}, "
            f"versions out of order {backwards}",
        )
        assert found.is_none
        assert backwards == 0
