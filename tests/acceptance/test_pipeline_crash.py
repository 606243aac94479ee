"""A pipeline whose parts are killed under load, each at its failpoint: the target ends equal to the source, row by row.

Killed are the driver, Python workers of Spark's, the planner that reads the slot, and both servers. Lanes are by table at
first, and by key after the checkpoint directory was lost as well.
"""

import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater import failpoints
from headwater.cli.pipeline_file.load import load
from headwater.embedded import EmbeddedPostgres
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import postgres_settings
from tests.support.stories.account_load import NAMES, AccountLoad, create_accounts, steps_back, wait_for_entries
from tests.support.stories.pipeline_process import running, settle, write_file
from tests.support.stories.pipeline_thread import pipeline_thread
from tests.support.waiting import eventually

# Each process of the driver ends at the last of its points. Before that, two workers of the first process die, and the
# planner of the second one dies twice.
FIRST = (
    "postgres_sink.applied=kill@2",
    "postgres_sink.committed=kill@2 after postgres_sink.applied",
    "sink.written=kill@3 after postgres_sink.committed",
)
SECOND = (
    "source.partitions=kill@4",
    "slot.confirm=kill@3 after source.partitions",
    "batch.begin=kill@3 after slot.confirm",
)
# Nothing of the last run is killed, so it is a thread of the tests.
LAST = ("pipeline.lease_renewal=error@5",)
POINTS = {term.partition("=")[0] for term in (*FIRST, *SECOND, *LAST)}

pytestmark = pytest.mark.timeout(300)


def test_a_pipeline_whose_parts_are_killed_under_load_ends_with_the_target_equal_to_the_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    first, second, last = (Failpoints(tmp_path, ", ".join(terms)) for terms in (FIRST, SECOND, LAST))
    with EmbeddedPostgres(postgres_settings(18)) as source, EmbeddedPostgres(postgres_settings(18)) as target:
        create_accounts(source.url, target.url)

        def write(lane_by: str) -> None:
            urls = {"source": source.url, "target": target.url}
            tables = [f"public.{name}" for name in NAMES]
            write_file(tmp_path, "crash", **urls, tables=tables, lane_by=lane_by, max_bytes="1MiB")

        write("table")
        with ExitStack() as runs:
            runner = runs.enter_context(running(tmp_path, first.environment))
            with AccountLoad(source.url, target.url, random.Random(7)):
                runner.wait_for_kill()
                assert first.unfired == set()
                # From the same checkpoint directory: the batch comes again, and the sink has it.
                runner.start(second.environment)
                runner.wait_for_kill()
                assert second.unfired == set()
                shutil.rmtree(tmp_path / "checkpoints")
                write("key")
                _arm_here(monkeypatch, last)
                thread = runs.enter_context(pipeline_thread(spark, load(tmp_path / "headwater.toml", {})))
                for server in (source, target):
                    wait_for_entries(target.url, 100, thread.require_life)
                    server.kill()
                    server.start()
                eventually(lambda: last.fired == POINTS, seconds=120)
                wait_for_entries(target.url, 100, thread.require_life)
            found = settle(thread, source.url, target.url, NAMES)
        assert thread.error is None
        backwards = steps_back(target.url)
        record_property(
            "counts",
            f"pipeline crash: killed at {', '.join(sorted(last.fired))}, and both servers; {found}, "
            f"versions out of order {backwards}",
        )
        assert found.is_none
        assert backwards == 0


def _arm_here(monkeypatch: pytest.MonkeyPatch, points: Failpoints) -> None:
    """Arm points for this process, in which a thread comes to them."""
    for name, value in points.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(failpoints, "_ARMED", failpoints.parse(points.environment[failpoints.VARIABLE]))
