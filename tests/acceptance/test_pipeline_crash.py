"""A pipeline whose parts are killed under load, each at its failpoint: the target ends equal to the source, row by row.

Killed are the driver, Python workers of Spark's, the planner that reads the slot, and both servers. Lanes are by table at
first, and by key after the checkpoint directory was lost as well.
"""

import random
import shutil
from collections.abc import Callable, Sequence
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
from tests.support.stories.pipeline_process import execute, running, settle, write_file
from tests.support.stories.pipeline_thread import pipeline_thread
from tests.support.waiting import eventually

# Each process of the driver ends at the last of its points. Before that, two workers of the first process die, and in the
# second one a worker once and the planner twice; it ends as it renews its lease, with a batch begun that has no task.
WORKERS = ("postgres_sink.applied=kill@2", "postgres_sink.committed=kill@2 after postgres_sink.applied")
FIRST = (*WORKERS, "sink.written=kill@3 after postgres_sink.committed")
SECOND = (
    "postgres_sink.applied=kill@2",
    "source.partitions=kill@4 after postgres_sink.applied",
    "slot.confirm=kill@3 after source.partitions",
    "batch.begin=sleep(60)@3 after slot.confirm",
    "pipeline.lease_renewal=kill after batch.begin",
)
# Nothing of the last run is killed, so it is a thread of the tests. It loses its lease, and takes it again.
LAST = ("pipeline.lease_renewal=error@5",)

pytestmark = pytest.mark.timeout(300)


def test_a_pipeline_whose_parts_are_killed_under_load_ends_with_the_target_equal_to_the_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    first, second, last = (_arm(tmp_path / name, terms) for name, terms in (("1", FIRST), ("2", SECOND), ("3", LAST)))
    with EmbeddedPostgres(postgres_settings(18)) as source, EmbeddedPostgres(postgres_settings(18)) as target:
        create_accounts(source.url, target.url)

        def write(lane_by: str) -> None:
            urls = {"source": source.url, "target": target.url}
            tables = [f"public.{name}" for name in NAMES]
            write_file(tmp_path, "crash", **urls, tables=tables, lane_by=lane_by, max_bytes="1MiB")

        write("table")
        with ExitStack() as runs:
            runner = runs.enter_context(running(tmp_path, first.environment))
            _insert_entries(source.url, first, runner.require_life)
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
                last.wait_for("pipeline.lease_renewal")
                wait_for_entries(target.url, 100, thread.require_life)
            found = settle(thread, source.url, target.url, NAMES)
        assert thread.error is None
        backwards = steps_back(target.url)
        fired = ", ".join(sorted(first.fired | second.fired | last.fired))
        record_property(
            "counts",
            f"pipeline crash: killed at {fired}, and both servers; {found}, versions out of order {backwards}",
        )
        assert found.is_none
        assert backwards == 0


def _arm(directory: Path, terms: Sequence[str]) -> Failpoints:
    """Arm points that fire once for this directory."""
    directory.mkdir()
    return Failpoints(directory, ", ".join(terms))


def _insert_entries(source: str, points: Failpoints, require_life: Callable[[], None]) -> None:
    """Write nothing but entries until both workers are killed, so that both have some in hand.

    Entries have no key. What is applied twice is there twice, and in the other tables it makes no difference.
    """
    wanted = {term.partition("=")[0] for term in WORKERS}

    def look() -> bool:
        if wanted <= points.fired:
            return True
        require_life()
        # Below those of the load.
        execute(source, "insert into entry select coalesce(min(id), 0) - 1, 0, 0 from entry")
        return False

    eventually(look, seconds=120)


def _arm_here(monkeypatch: pytest.MonkeyPatch, points: Failpoints) -> None:
    """Arm points for this process, in which a thread comes to them."""
    for name, value in points.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(failpoints, "_ARMED", failpoints.parse(points.environment[failpoints.VARIABLE]))
