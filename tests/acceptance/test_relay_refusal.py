"""A pipeline over an outbox that relays inside of processes serve: refused before anything is sent a second time."""

from pathlib import Path

import pytest

from tests.acceptance.running import fetch, run_once
from tests.outbox import Queue, queue_access
from tests.rabbitmq import RabbitmqNode
from tests.relaying import RelayProducer, RelayThread
from tests.spark import java_home, quick_settings

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


def test_a_run_of_a_pipeline_is_refused_in_one_line_while_relays_serve_the_outbox(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path
) -> None:
    spark = "\n".join(f'"{key}" = """{value}"""' for key, value in quick_settings(java_home()).items())
    (tmp_path / "headwater.toml").write_text(
        f'name = "events"\n[source]\ntype = "outbox"\nurl = "{source}"\n'
        f'[[sinks]]\ntype = "rabbitmq"\nurl = "{rabbitmq.url}"\n[spark]\nmaster = "local[2]"\n{spark}\n'
    )
    with RelayThread(source, queue_access(rabbitmq.url, queue)) as running:
        with RelayProducer(running.relay, source, "sales") as producer:
            producer.wait_for_more(10)
            ended = run_once(tmp_path)
            # Those who write, and their relay, notice nothing of it.
            producer.wait_for_more(10)
        queue.wait_for(producer.committed, running.require_life, seconds=60)
    assert ended.code == 1
    (line,) = [line for line in ended.said.splitlines() if "relays inside of processes serve" in line]
    assert "headwater outbox release" in line
    assert "Traceback" not in ended.said
    assert fetch(source, "select count(*) from headwater.outbox_checkpoint") == [(0,)]
    assert fetch(source, "select count(*) from pg_replication_slots where database = current_database()") == [(0,)]
