"""The Python processes of a pipeline load the modules of its source and its sink, and no broker: each start costs time."""

import subprocess
import sys

import pytest

# The clients of brokers, our own parts for them, and pandas, which a planner has no use for.
UNUSED = {"nats", "pika", "confluent_kafka", "azure", "headwater.brokers", "headwater.creek", "headwater.outbox", "pandas"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "modules",
    [
        "pyspark.sql.streaming.python_streaming_source_runner, headwater.spark.sources.changes",
        "pyspark.worker, headwater.spark.sources.changes, headwater.spark.sinks.postgres.task",
        "pyspark.worker, headwater.spark.sources.changes, headwater.spark.sinks.parquet.task",
    ],
    ids=["planner", "worker to PostgreSQL", "worker to Parquet"],
)
def test_a_process_that_reads_changes_loads_no_broker(modules):
    program = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert "headwater.spark.sources.changes" in loaded
    assert loaded & UNUSED == set()
