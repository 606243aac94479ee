"""A pipeline over an outbox that relays inside of processes serve: refused before anything is sent a second time."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.cli.app import run
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.servers.shared_spark import commands_on
from tests.support.stories.outbox_story import Queue, queue_access, write_relay_file
from tests.support.stories.pipeline_process import fetch
from tests.support.stories.relay_processes import RelayProducer, RelayThread

pytestmark = pytest.mark.timeout(300)


def test_a_run_of_a_pipeline_is_refused_in_one_line_while_relays_serve_the_outbox(
    spark: SparkSession,
    source: str,
    rabbitmq: RabbitmqNode,
    queue: Queue,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = {"type": "rabbitmq", "url": rabbitmq.url}
    write_relay_file(tmp_path, tmp_path / "checkpoint", {"url": source}, sink)
    with RelayThread(source, queue_access(rabbitmq.url, queue)) as running:
        with RelayProducer(running.relay, source, "sales") as producer:
            producer.wait_for_more(10)
            with commands_on(spark):
                code = run(["--log-format", "text", "run", "--file", str(tmp_path / "headwater.toml"), "--once"])
            # Those who write, and their relay, notice nothing of it.
            producer.wait_for_more(10)
        queue.wait_for(producer.committed, running.require_life, seconds=60)
    said = capsys.readouterr().err
    assert code == 1
    (line,) = [line for line in said.splitlines() if "relays inside of processes serve" in line]
    assert "headwater outbox release" in line
    assert "Traceback" not in said
    assert fetch(source, "select count(*) from headwater.outbox_checkpoint") == [(0,)]
    assert fetch(source, "select count(*) from pg_replication_slots where database = current_database()") == [(0,)]
