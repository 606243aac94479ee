"""An outbox whose server is replaced: by a standby that lagged, or by another cluster with the same rows.

What the new server has and nobody can tell to be delivered is delivered again, and the log says so.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.embedded import EmbeddedPostgres
from headwater.embedded.account import postgres_account, switch_to
from headwater.outbox.checkpoint import prepare_outbox
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.servers.embedded import postgres_settings, shared_place
from tests.support.servers.shared_spark import planners_heard
from tests.support.stories.outbox_story import (
    NAME,
    Message,
    Producer,
    Queue,
    queue_access,
    relay_once,
    relay_settings,
    tally,
)
from tests.support.stories.pipeline_process import execute, fetch
from tests.support.waiting import eventually

SOME = 200

pytestmark = pytest.mark.timeout(600)

Note = Callable[[str, object], None]


@pytest.fixture
def place() -> Iterator[Path]:
    """Where every user may pass: servers run as one of their own."""
    base = Path(tempfile.mkdtemp(dir=shared_place()))
    base.chmod(0o711)
    yield base
    shutil.rmtree(base)


def _deliver(spark: SparkSession, directory: Path, source: str, rabbitmq: RabbitmqNode, queue: Queue) -> None:
    """Deliver what is there, with the checkpoint directory of the runs before."""
    relay_once(spark, relay_settings(directory, source, queue_access(rabbitmq.url, queue)))


def _deliver_saying(
    said: str, spark: SparkSession, directory: Path, source: str, rabbitmq: RabbitmqNode, queue: Queue
) -> None:
    """Deliver as above, and require that the log matches `said`."""
    with planners_heard(spark) as log:
        _deliver(spark, directory, source, rabbitmq, queue)
        # Java copies it in a thread of its own.
        eventually(lambda: re.search(said, log()), seconds=10)


def _produce(source: str, first: int) -> list[Message]:
    with Producer(source, NAME, first=first) as producer:
        producer.wait_for_more(SOME)
    return producer.committed


def _copy(server: EmbeddedPostgres, directory: Path) -> None:
    """A base backup, as the user that the servers run as, and the password beside it."""
    original, data = server.directory / "data", directory / "data"
    directory.mkdir(mode=0o711)
    shutil.copy2(server.directory / "password", directory / "password")
    data.mkdir(mode=0o700)
    os.chown(data, original.stat().st_uid, original.stat().st_gid)
    program = str(server.bin_directory / "pg_basebackup")
    command = [program, "--dbname", server.url, "--pgdata", str(data), "--checkpoint=fast"]
    subprocess.run(command, check=True, cwd="/", **switch_to(postgres_account(original)))
    (data / "standby.signal").touch()


def test_a_promoted_standby_that_lagged_delivers_all_that_it_has_whatever_the_ids_of_its_transactions(
    spark: SparkSession, place: Path, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    """It gives the ids of transactions that it never had to others. It has a slot of the same name, made after promotion."""
    common = replace(postgres_settings(18), root=place / "root")
    with EmbeddedPostgres(replace(common, directory=place / "primary")) as primary:
        prepare_outbox(primary.url)
        kept = _produce(primary.url, 0)
        _deliver(spark, tmp_path, primary.url, rabbitmq, queue)
        _copy(primary, place / "standby")
        gone = _produce(primary.url, 100)
        _deliver(spark, tmp_path, primary.url, rabbitmq, queue)
        primary.kill()
    queue.wait_for([*kept, *gone])
    assert tally([*kept, *gone], queue.arrived).repeated == 0
    with EmbeddedPostgres(replace(common, directory=place / "standby")) as standby:
        assert fetch(standby.url, "select pg_promote()") == [(True,)]
        execute(standby.url, f"select pg_create_logical_replication_slot('{NAME}', 'pgoutput')")
        new = _produce(standby.url, 200)
        said = "is read from the table|everything is delivered again"
        _deliver_saying(said, spark, tmp_path, standby.url, rabbitmq, queue)
        queue.wait_for(new)
    found = tally([*kept, *gone, *new], queue.arrived)
    record_property("counts", f"outbox, a standby that lagged is promoted, with a slot: {found}")
    found.require_all()
    assert found.repeated <= len(kept)


def test_another_cluster_with_the_same_rows_delivers_all_of_them_again_and_says_so(
    spark: SparkSession, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    """By dump and restore: the rows have the ids of transactions that mean nothing there."""
    with EmbeddedPostgres(postgres_settings(18)) as old, EmbeddedPostgres(postgres_settings(18)) as new:
        prepare_outbox(old.url)
        # Far more transactions than the other one will have for a while.
        execute(old.url, "do $$ begin for i in 1..3000 loop perform pg_current_xact_id(); commit; end loop; end $$")
        delivered = _produce(old.url, 0)
        _deliver(spark, tmp_path, old.url, rabbitmq, queue)
        waiting = _produce(old.url, 100)
        dump = subprocess.run([str(old.bin_directory / "pg_dump"), old.url], check=True, capture_output=True).stdout
        subprocess.run(
            [str(new.bin_directory / "psql"), "--quiet", "--set=ON_ERROR_STOP=1", new.url],
            check=True,
            input=dump,
            stdout=subprocess.DEVNULL,
        )
        own = _produce(new.url, 200)
        before = len(queue.arrived)
        said = "of another server or history, so everything is delivered again"
        _deliver_saying(said, spark, tmp_path, new.url, rabbitmq, queue)
        queue.wait_for([*waiting, *own], seconds=20)
    committed = [*delivered, *waiting, *own]
    found, again = tally(committed, queue.arrived), tally(committed, queue.arrived[before:])
    record_property("counts", f"outbox, restored in another cluster: {found}; there: {again}")
    found.require_all()
    again.require_all()
