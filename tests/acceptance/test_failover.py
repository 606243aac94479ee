"""A primary dies, and a standby that has a copy of the slot is promoted: the pipeline goes on, and reads no table again.

Such copies are kept by standbys of PostgreSQL 17 and later, and the primary shows the slot's reader nothing that the standby
does not have yet.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import psycopg
import pytest
from pyspark.sql import SparkSession

from headwater.embedded import EmbeddedPostgres
from headwater.embedded.account import postgres_account, switch_to
from headwater.errors import HeadwaterError
from headwater.postgres.connect import connect_sync
from headwater.spark.settings import ChangesSettings, PipelineSettings, PostgresSinkSettings
from tests.support.servers.embedded import postgres_settings, shared_place
from tests.support.stories.pipeline_process import Running, execute, fetch, settle
from tests.support.stories.pipeline_thread import pipeline_thread
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

TABLES = ("item", "entry")
MOST_AHEAD = 300
FOLLOWING = "select from pg_replication_slots where slot_name = 'followed' and failover and synced and not temporary"


@dataclass(frozen=True)
class Pair:
    """A primary, and a standby that every commit waits for; `url` leads to whichever of them takes writes."""

    primary: EmbeddedPostgres
    standby: EmbeddedPostgres

    @property
    def url(self) -> str:
        parts = urlsplit(self.primary.url)
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        query = f"{parts.query}&target_session_attrs=read-write"
        return parts._replace(netloc=f"postgres:{parts.password}@{hosts}", query=query).geturl()


@pytest.fixture
def pair() -> Iterator[Pair]:
    base = Path(tempfile.mkdtemp(dir=shared_place()))
    base.chmod(0o711)
    common = replace(postgres_settings(18), root=base / "root")
    primary = EmbeddedPostgres(replace(common, directory=base / "primary"))
    standby: EmbeddedPostgres | None = None
    try:
        primary.start()
        execute(primary.url, "select pg_create_physical_replication_slot('standby', true)")
        _copy(primary, base / "standby")
        follow = {
            "primary_conninfo": f"{primary.url}&application_name=standby",
            "primary_slot_name": "standby",
            "hot_standby_feedback": "on",
            "sync_replication_slots": "on",
        }
        standby = EmbeddedPostgres(replace(common, directory=base / "standby", config={**common.config, **follow}))
        standby.start()
        # After the copy: the standby, once it is promoted, has nobody to wait for.
        execute(
            primary.url,
            "alter system set synchronized_standby_slots = 'standby'",
            "alter system set synchronous_standby_names = 'standby'",
            "select pg_reload_conf()",
        )
        yield Pair(primary, standby)
    finally:
        if standby is not None:
            standby.stop()
        primary.stop()
        shutil.rmtree(base)


def _copy(primary: EmbeddedPostgres, directory: Path) -> None:
    """A base backup, as the user that the servers run as, and the password beside it."""
    original, data = primary.directory / "data", directory / "data"
    directory.mkdir(mode=0o711)
    shutil.copy2(primary.directory / "password", directory / "password")
    data.mkdir(mode=0o700)
    os.chown(data, original.stat().st_uid, original.stat().st_gid)
    program = str(primary.bin_directory / "pg_basebackup")
    command = [program, "--dbname", primary.url, "--pgdata", str(data), "--checkpoint=fast"]
    subprocess.run(command, check=True, cwd="/", **switch_to(postgres_account(original)))
    (data / "standby.signal").touch()


class Writer:
    """One transaction after another, on whichever server takes writes; entries that were `acknowledged` must not be lost.

    It stays a bounded number of transactions ahead of the target.
    """

    def __init__(self, url: str, target: str) -> None:
        self.acknowledged: list[int] = []
        self._url, self._target, self._stop, self._number, self._arrived = url, target, Event(), 0, 0
        self._thread = Thread(target=self._run)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            try:
                with closing(connect_sync(self._url)) as connection:
                    while self._keep_pace():
                        self._number += 1
                        with connection.transaction():
                            connection.execute("insert into entry values (%s)", [self._number])
                            connection.execute("insert into item values (%s, 'new')", [1000 + self._number])
                            connection.execute("update item set v = %s where id = %s", [self._number, self._number % 1000])
                            connection.execute("delete from item where id = %s", [self._number * 7 % 1000])
                        self.acknowledged.append(self._number)
            except (psycopg.Error, HeadwaterError):
                continue

    def _keep_pace(self) -> bool:
        """Wait until the target is close enough; False if told to stop."""
        while self._number - self._arrived > MOST_AHEAD and not self._stop.wait(0.05):
            ((arrived,),) = fetch(self._target, "select coalesce(max(id), 0) from entry")
            self._arrived = int(str(arrived))
        return not self._stop.is_set()


def _settings(directory: Path, source: str, target: str) -> PipelineSettings:
    """The state is at the source, and so at the standby as well."""
    tables = tuple(f"public.{name}" for name in TABLES)
    return PipelineSettings(
        name="followed",
        source=ChangesSettings(url=source, tables=tables, slot="followed", publication="followed"),
        sinks=(PostgresSinkSettings(name="postgres", url=target),),
        checkpoint=str(directory / "checkpoints"),
        state_url=source,
    )


def _readings(url: str) -> list[tuple[object, ...]]:
    """What was read as a whole, and the slot that it was read for."""
    return fetch(
        url,
        "select table_name, state, request, attempt, generation from headwater.pipeline_table join headwater.pipeline_slot "
        "using (pipeline) order by table_name",
    )


def _delivered(target: str) -> set[int]:
    return {int(str(id)) for (id,) in fetch(target, "select id from entry")}


def test_a_pipeline_goes_on_at_a_promoted_standby_without_loss_and_without_reading_tables_again(
    pair: Pair, spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with EmbeddedPostgres(postgres_settings(18)) as target:
        execute(
            pair.primary.url,
            "create table item (id int primary key, v text not null)",
            "insert into item select g, 'first' from generate_series(0, 999) g",
            # Without a key, so that a row which is delivered twice is there twice.
            "create table entry (id int)",
            "alter table entry replica identity full",
        )
        with pipeline_thread(spark, _settings(tmp_path, pair.url, target.url)) as runner:
            with Writer(pair.url, target.url) as writer:
                eventually(lambda: _is_streaming(pair.primary.url), seconds=200)
                readings = _readings(pair.primary.url)
                eventually(lambda: fetch(pair.standby.url, FOLLOWING), seconds=60)
                _wait_for_more(runner, target.url)
                pair.primary.kill()
                before = len(writer.acknowledged)
                assert fetch(pair.standby.url, "select pg_promote()") == [(True,)]
                eventually(lambda: len(writer.acknowledged) > before + 100, seconds=60)
                _wait_for_more(runner, target.url)
            found = settle(runner, pair.standby.url, target.url, TABLES)
            assert _readings(pair.standby.url) == readings
        lost = len(set(writer.acknowledged) - _delivered(target.url))
        record_property(
            "counts",
            f"failover: {before} transactions acknowledged before it and {len(writer.acknowledged) - before} after, "
            f"lost {lost}; {found}",
        )
        assert found.is_none
        assert lost == 0


def _is_streaming(url: str) -> bool:
    try:
        return [state for _, state, *_ in _readings(url)] == ["streaming"] * len(TABLES)
    except psycopg.errors.UndefinedTable:
        return False


def _wait_for_more(runner: Running, target: str) -> None:
    before = len(_delivered(target))

    def look() -> bool:
        runner.require_life()
        return len(_delivered(target)) > before

    eventually(look, seconds=90)
