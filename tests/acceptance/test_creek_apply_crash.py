"""A Creek consumer that is killed with its servers while snapshots are loaded: its target ends equal to the source.

The source is a producer of the test's own, which knows what was committed: nothing is lost, and nothing comes twice.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from headwater.brokers.nats.access import NatsAccess
from headwater.creek.names import Names
from headwater.embedded import EmbeddedNats, EmbeddedPostgres, NatsSettings
from headwater.errors import BrokerUnavailable
from headwater.spark.creek_apply.sink import prepare_target
from tests.support.capture.pgoutput_writer import delete, insert, relation, update
from tests.support.creek.snapshot_answers import Answers
from tests.support.creek.stream_feed import Feed
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import postgres_settings, shared_root
from tests.support.servers.spark_session import story_environment
from tests.support.stories.command_run import CommandRun, run_until_told
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

INT4, TEXT = 23, 25
ACCOUNT = relation(100, "account", [("id", INT4, -1, True), ("note", TEXT, -1, False)])
ENTRY = relation(101, "entry", [("number", INT4, -1, False)])
ACCOUNTS = 3000
SERVE = ("creek", "apply", "serve", "--prometheus-port", "0")
LOADING = "loading snapshot"
REQUESTS = "select state from _creek_consumer.requests"
SNAPSHOT = "select _creek_consumer.snapshot('shop.public.account', 'clean')"
# A worker dies with changes committed, and the planner with the offsets of a batch logged. Then a chunk is loaded and not
# committed for long enough to kill its driver.
POINTS = (
    "postgres_sink.committed=kill@3",
    "source.partitions=kill@3 after postgres_sink.committed",
    "snapshot.loaded=sleep(60) after source.partitions",
)


class Source:
    """Commits and publishes transactions until told to stop, and takes snapshots; what is committed is published later."""

    def __init__(self, access: NatsAccess) -> None:
        names = Names("CREEK", "shop")
        self._feed, self._snapshots = Feed(access, names), Feed(access, names)
        self._lock, self._stop = Lock(), Event()
        self._random = random.Random(7)
        self._thread = Thread(target=self._run)
        self.rows = dict.fromkeys(range(1, ACCOUNTS + 1), "new")
        self.entries = 0
        self._xid, self._lsn, self._taken = 100, 10_000, 0

    def __enter__(self) -> "Source":
        self._feed.transaction(9_000, [ACCOUNT, ENTRY, insert(101, ["0"])], xid=99)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        self._feed.close()
        self._snapshots.close()

    def settle(self) -> None:
        """Write no more; all that was committed is published on return."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            committed = self._commit()
            while True:
                try:
                    self._feed.transaction(*committed[:2], xid=committed[2])
                    break
                except BrokerUnavailable:
                    continue

    def _commit(self) -> tuple[int, list[bytes], int]:
        with self._lock:
            self._lsn, self._xid = self._lsn + 100, self._xid + 1
            messages = [self._change() for _ in range(self._random.choice([1, 5, 40]))]
            self.entries += 1
            return self._lsn, [*messages, insert(101, [str(self.entries)])], self._xid

    def _change(self) -> bytes:
        number, note = self._random.randint(1, ACCOUNTS), str(self._random.random())
        if number not in self.rows:
            self.rows[number] = note
            return insert(100, [str(number), note])
        if self._random.random() < 0.1:
            del self.rows[number]
            return delete(100, [str(number), None])
        self.rows[number] = note
        return update(100, [str(number), note])

    def take(self, _request: Mapping[str, str]) -> str:
        """A snapshot of the accounts: all that has committed, of which not all is published."""
        with self._lock:
            self._taken += 1
            ids, xmax, until = sorted(self.rows), self._xid + 1, self._lsn + 1
            columns = [[str(number) for number in ids], [self.rows[number] for number in ids]]
            suffix = f"20240101000000_{self._taken:06}_abcd"
        return self._snapshots.snapshot(ACCOUNT, columns, suffix=suffix, lsn=until, snapshot=f"{xmax}:{xmax}:", until=until)


@contextmanager
def serving(directory: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`headwater creek apply serve` as a process, with its output in `serve.log`; it is killed at the end."""
    with (directory / "serve.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "headwater.cli", *SERVE], env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def servers() -> Iterator[tuple[EmbeddedNats, EmbeddedPostgres]]:
    with EmbeddedNats(NatsSettings(root=shared_root())) as nats, EmbeddedPostgres(postgres_settings(18)) as target:
        yield nats, target


@contextmanager
def answering(access: NatsAccess, source: Source) -> Iterator[None]:
    """Answer requests for snapshots; a server that went away is connected to again."""
    ended = Event()

    def run() -> None:
        while not ended.is_set():
            with suppress(BrokerUnavailable):
                with Answers(access, "CREEK._snapshot", source.take) as answers:
                    while answers.is_alive and not ended.wait(0.1):
                        pass

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def is_equal(url: str, source: Source) -> bool:
    with suppress(psycopg.OperationalError):
        return dict(rows(url, "select id, note from account")) == source.rows and entries(url) >= source.entries + 1
    return False


def entries(url: str) -> int:
    return len(rows(url, "select number from entry"))


def test_the_target_equals_the_source_whoever_is_killed(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    points = Failpoints(tmp_path, ", ".join(POINTS))
    with servers() as (nats, target):
        prepare_target(target.url)
        rows(target.url, "create table account (id int primary key, note text); create table entry (number int)")
        for table in ("account", "entry"):
            rows(target.url, f"select _creek_consumer.add_table('shop.public.{table}')")
        access = NatsAccess(url=nats.url, timeout=timedelta(seconds=60))
        given = {"NATS_URI": nats.url, "DB_URI": target.url}
        environment = {**os.environ, **story_environment(), **points.environment, **given}
        # A process that is killed leaves its temporary files behind.
        environment["TMPDIR"] = str(tmp_path)
        with Source(access) as source, answering(access, source):
            with serving(tmp_path, environment) as process:
                points.wait_for("source.partitions")
                # The consumer starts again when it knows of the worker, and of the planner; what it does until then it
                # would do again.
                log = tmp_path / "serve.log"
                eventually(lambda: log.read_text(errors="replace").count("trying again in") >= 2, seconds=120)
                before = entries(target.url)
                eventually(lambda: entries(target.url) > before, seconds=120)
                rows(target.url, SNAPSHOT)
                points.wait_for("snapshot.loaded")
                assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert [state for (state,) in rows(target.url, REQUESTS)] == ["running"]

            def go_on(serve: CommandRun) -> None:
                serve.wait_until(lambda: _is_done(target.url))
                for server in (nats, target):
                    loads = serve.times_said(LOADING)
                    rows(target.url, SNAPSHOT)
                    serve.wait_until(lambda before=loads: serve.times_said(LOADING) > before)
                    server.kill()
                    server.start()
                    serve.wait_until(lambda: _is_done(target.url))
                source.settle()
                serve.wait_until(lambda: is_equal(target.url, source))

            # The death of the process is the point, and which one goes on is not.
            for name, value in given.items():
                monkeypatch.setenv(name, value)
            assert run_until_told(spark, SERVE, go_on) == 0
            numbers = [number for (number,) in rows(target.url, "select number from entry")]
            lost, twice = set(range(source.entries + 1)) - set(numbers), len(numbers) - len(set(numbers))
            record_property(
                "counts",
                f"creek consumer crash: consumer, worker, planner, NATS and target killed; {source.entries} transactions, "
                f"lost {len(lost)}, repeated {twice}",
            )
            assert (lost, twice) == (set(), 0)
            assert is_equal(target.url, source)
            assert rows(target.url, "select count(*) from headwater.dead_letter") == [(0,)]


def _is_done(url: str) -> bool:
    """Whether what was asked for last is done; what was under way at the kill may be done again before."""
    found = rows(url, "select state, error from _creek_consumer.requests order by id")
    assert not [error for state, error in found if state == "failed"], found
    return all(state == "done" for state, _ in found)
