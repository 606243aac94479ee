"""Snapshots during which everything is killed and rows are deleted: the target ends equal to the source.

Killed are, each at its failpoint, the planner that holds the snapshot, a Python worker of Spark's and the driver; then the
target while a table is added, and the source while the snapshot of a table is taken again.
"""

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.cli.pipeline_file.load import load
from headwater.embedded import EmbeddedPostgres
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import postgres_settings
from tests.support.stories.pipeline_process import execute, running, settle, write_file
from tests.support.stories.pipeline_thread import pipeline_thread
from tests.support.stories.snapshot_writer import (
    ADDED_ROWS,
    SnapshotWriter,
    create_table,
    create_tables,
    is_streaming,
    snapshot_state,
    sweep,
    wait_for_attempt,
)
from tests.support.waiting import eventually

# In this order. The first snapshot of a process is that of all small tables, the second that of the large one.
POINTS = ("snapshot.loaded=kill", "snapshot.opened=kill@2", "snapshot.swap=kill@2")
# Too large to share a snapshot with others.
LARGE_ROWS = 50_000

pytestmark = pytest.mark.timeout(300)


def test_snapshots_during_which_everything_is_killed_and_rows_are_deleted_end_equal_to_the_source(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    sizes = {"small": 300, "large": LARGE_ROWS}
    points = Failpoints(tmp_path, ", ".join(POINTS))
    with EmbeddedPostgres(postgres_settings(18)) as source, EmbeddedPostgres(postgres_settings(18)) as target:
        create_tables(source.url, sizes)
        tables = ["public.small", "public.large", "public.entry"]
        write_file(tmp_path, "crash", source=source.url, target=target.url, tables=tables, lanes=1, max_bytes="1MiB")
        with ExitStack() as runs:
            runner = runs.enter_context(running(tmp_path, points.environment))
            with SnapshotWriter(source.url, target.url, sizes, random.Random(11)) as writer:
                for number, name in enumerate(("snapshot.loaded", "snapshot.opened", "snapshot.swap")):
                    points.wait_for(name)
                    for table in sizes:
                        sweep(source.url, table, number)
                runner.wait_for_kill()
                # The rest is not about the death of a process, so it goes on in a thread of the tests.
                thread = runs.enter_context(pipeline_thread(spark, load(tmp_path / "headwater.toml", {})))
                eventually(lambda: is_streaming(source.url, "large"), seconds=120)

                create_table(source.url, "added", ADDED_ROWS)
                execute(source.url, "select headwater.add_table('crash', 'public.added')")
                sizes["added"] = ADDED_ROWS
                wait_for_attempt(source.url, "added", None)
                target.kill()
                target.start()
                sweep(source.url, "added", 3)
                eventually(lambda: is_streaming(source.url, "added"), seconds=120)

                _, before = snapshot_state(source.url, "large")
                execute(source.url, "select headwater.snapshot_table('crash', 'public.large')")
                wait_for_attempt(source.url, "large", before)
                source.kill()
                source.start()
                sweep(source.url, "large", 4)
                eventually(lambda: is_streaming(source.url, "large"), seconds=120)
            found = settle(thread, source.url, target.url, ["entry", *sizes])
        assert thread.error is None
        record_property(
            "counts",
            f"snapshot crash: killed at {', '.join(sorted(points.fired))}, the target in a table add and the source in a "
            f"re-snapshot; {found}, {writer.deleted} deleted meanwhile",
        )
        assert points.fired == {"snapshot.opened", "snapshot.loaded", "snapshot.swap"}
        assert found.is_none
