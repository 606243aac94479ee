"""The source as Spark runs it: what is confirmed when, how a query ends, and what its user is told."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.model import Lsn
from headwater.postgres.connect import Connection, connect_sync
from headwater.spark.sources import register
from tests.support.capture.captured_database import confirmed_flush, prepare
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

Deliver = Callable[[DataFrame, int], None]


class Delivered:
    """What has been delivered; `hold` keeps the batch that holds an id from ending until `release`."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.batches: list[int] = []
        self.held: int | None = None
        self.is_held, self.release = Event(), Event()

    def __call__(self, batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        if self.held is not None and self.held in map(_id, rows):
            self.is_held.set()
            assert self.release.wait(60)
        self.rows += rows
        self.batches.append(number)

    @property
    def ids(self) -> list[int]:
        return [_id(row) for row in sorted(self.rows, key=lambda row: (row["commit_lsn"], row["ordinal"]))]


def _id(row: Any) -> int:
    return int(json.loads(row["after"])["id"])


def _stream(spark: SparkSession, url: str, **options: object) -> DataFrame:
    register(spark)
    given = {"url": url, "slot": "hw", "publication": "pub", **options}
    return spark.readStream.format("headwater.changes").options(**{name: str(value) for name, value in given.items()}).load()


@contextmanager
def _running(changes: DataFrame, deliver: Deliver, checkpoint: Path) -> Iterator[StreamingQuery]:
    query = changes.writeStream.foreachBatch(deliver).option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query
    finally:
        query.stop()


def _drain(changes: DataFrame, deliver: Deliver, checkpoint: Path) -> None:
    writer = changes.writeStream.foreachBatch(deliver).option("checkpointLocation", str(checkpoint))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


def _wait_for_release(connection: Connection) -> None:
    """Spark ends the process that reads the slot after it has said that the query has ended."""
    is_active = "select active from pg_replication_slots where slot_name = 'hw'"
    eventually(lambda: connection.execute(is_active).fetchone() == (False,))


def test_the_slot_stays_while_a_batch_is_delivered_and_moves_when_the_stream_is_idle(spark, database, tmp_path):
    delivered = Delivered()
    delivered.held = 2
    with prepare(database, "insert into item values (1)", "create table noise (v text)") as connection:
        with _running(_stream(spark, database), delivered, tmp_path):
            eventually(lambda: delivered.ids == [1], seconds=60)
            connection.execute("insert into item values (2)")
            ((behind,),) = connection.execute("select pg_current_wal_insert_lsn()").fetchall()
            assert delivered.is_held.wait(60)
            first = confirmed_flush(connection)
            # Status updates go on, and others write; the slot must not follow them.
            connection.execute("insert into noise select md5(g::text) from generate_series(1, 20000) g")
            sent = connection.execute("select reply_time from pg_stat_replication").fetchone()
            eventually(lambda: connection.execute("select reply_time from pg_stat_replication").fetchone() != sent)
            assert confirmed_flush(connection) < behind
            assert first <= confirmed_flush(connection)
            delivered.release.set()
            # No further batch comes: an idle stream confirms its last one.
            eventually(lambda: confirmed_flush(connection) >= behind)
        assert delivered.ids == [1, 2]


def test_heartbeats_and_other_tables_make_no_batches(spark, database, tmp_path):
    delivered = Delivered()
    with prepare(database, "insert into item values (1)", "create table noise (v text)") as connection:
        with _running(_stream(spark, database), delivered, tmp_path) as query:
            eventually(lambda: delivered.ids == [1], seconds=60)
            for _ in range(5):
                connection.execute("insert into noise select md5(g::text) from generate_series(1, 2000) g")
                connection.execute("select pg_logical_emit_message(true, 'headwater.heartbeat', '')")
            ((written,),) = connection.execute("select pg_current_wal_lsn()").fetchall()
            eventually(lambda: confirmed_flush(connection) >= written)
            assert query.isActive
        # The first batch of a checkpoint is run even when it is empty.
        assert len(delivered.batches) <= 2


def test_available_now_ends_and_leaves_the_slot_at_the_end_of_its_last_batch(spark, database, tmp_path):
    delivered = Delivered()
    changes = _stream(spark, database, maxRowsPerTrigger=40)
    with prepare(database) as connection:
        for first in range(0, 100, 10):
            connection.execute("insert into item select generate_series(%s::int, %s::int)", [first, first + 9])
        _drain(changes, delivered, tmp_path)
        assert delivered.ids == list(range(100))
        assert len(delivered.batches) >= 3
        offsets = sorted(tmp_path.glob("offsets/[0-9]*"), key=lambda path: int(path.name))
        last = json.loads(offsets[-1].read_text().splitlines()[-1])
        # It was told before the query ended, and may take a moment over it.
        eventually(lambda: confirmed_flush(connection) >= Lsn.parse(last["lsn"]))
        connection.execute("insert into item values (100)")
        _drain(changes, delivered, tmp_path)
        assert delivered.ids == list(range(101))


def test_available_now_makes_the_slot_at_its_first_start_and_misses_nothing_afterwards(spark, database, tmp_path):
    delivered = Delivered()
    with connect_sync(database) as connection:
        connection.execute("create table item (id int primary key)")
        connection.execute("insert into item values (1)")
        changes = _stream(spark, database, tables="item")
        _drain(changes, delivered, tmp_path)
        connection.execute("insert into item values (2)")
        _drain(changes, delivered, tmp_path)
    assert delivered.ids == [2]


def test_a_stopped_query_frees_the_slot_and_the_next_one_goes_on_at_once(spark, database, tmp_path):
    delivered = Delivered()
    changes = _stream(spark, database)
    with prepare(database) as connection:
        for number in range(3):
            with _running(changes, delivered, tmp_path):
                connection.execute("insert into item values (%s)", [number])
                # A batch that the stop found delivered and not yet committed comes again.
                eventually(lambda number=number: set(delivered.ids) == set(range(number + 1)), seconds=60)
        _wait_for_release(connection)


def test_a_batch_that_failed_comes_again_with_the_same_rows(spark, database, tmp_path):
    delivered, seen = Delivered(), []

    def fail_once(batch: DataFrame, number: int) -> None:
        seen.append(batch.collect())
        if len(seen) < 3:
            raise RuntimeError("the sink is down")
        delivered(batch, number)

    changes = _stream(spark, database, maxRowsPerTrigger=5)
    with prepare(database, "insert into item select generate_series(1, 5)") as connection:
        before = confirmed_flush(connection)
        for _ in range(2):
            with pytest.raises(StreamingQueryException, match="the sink is down"):
                _drain(changes, fail_once, tmp_path)
            connection.execute("insert into item select max(id) + 1 from item")
            assert confirmed_flush(connection) <= Lsn(seen[0][0]["commit_lsn"])
        _drain(changes, fail_once, tmp_path)
    assert seen[0] == seen[1] == seen[2]
    assert delivered.ids == list(range(1, 8))
    assert before


def test_the_end_of_the_capture_is_the_end_of_the_query_with_our_sentence(spark, database, tmp_path):
    delivered = Delivered()
    with prepare(database, "insert into item values (1)") as connection:
        with _running(_stream(spark, database), delivered, tmp_path) as query:
            eventually(lambda: delivered.ids == [1], seconds=60)
            connection.execute("drop publication pub")
            connection.execute("select pg_terminate_backend(active_pid, 5000) from pg_replication_slots")
            with pytest.raises(StreamingQueryException, match=r"SourceError: publication 'pub' does not exist"):
                query.awaitTermination(60)
            assert not query.isActive


def test_a_missing_slot_ends_a_query_with_a_checkpoint(spark, database, tmp_path):
    changes = _stream(spark, database, tables="item")
    with prepare(database, "insert into item values (1)") as connection:
        _drain(changes, Delivered(), tmp_path)
        _wait_for_release(connection)
        connection.execute("select pg_drop_replication_slot('hw')")
        with pytest.raises(StreamingQueryException, match="replication slot 'hw' does not exist"):
            _drain(changes, Delivered(), tmp_path)
        assert connection.execute("select count(*) from pg_replication_slots where slot_name = 'hw'").fetchone() == (0,)


def test_a_checkpoint_of_another_source_is_refused(spark, database, tmp_path):
    other = spark.readStream.format("rate").load().writeStream.foreachBatch(lambda batch, number: None)
    assert other.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(60)
    with prepare(database, "insert into item values (1)"):
        with pytest.raises(StreamingQueryException, match=r"not one of a `headwater\.changes` source; name another"):
            _drain(_stream(spark, database), Delivered(), tmp_path)


def test_a_user_is_told_what_is_wrong_before_anything_starts(spark, database):
    register(spark)
    with pytest.raises(PySparkException, match="has no option 'tabels'; did you mean 'tables'"):
        _stream(spark, database, tabels="item").schema  # noqa: B018 - Spark looks at options then
    with pytest.raises(PySparkException, match="is a stream: use `readStream`"):
        spark.read.format("headwater.changes").options(url=database, slot="hw").load().collect()


def test_a_large_transaction_goes_through_spark_in_several_batches(spark, database, tmp_path):
    counts: list[int] = []
    totals: list[int] = []

    def count(batch: DataFrame, number: int) -> None:
        summary = batch.selectExpr("count(*) as n", "sum(get_json_object(after, '$.id')) as total").collect()[0]
        counts.append(summary["n"])
        totals.append(int(summary["total"] or 0))

    with prepare(database, "insert into item select g, repeat('x', 200) from generate_series(1, 20000) g"):
        _drain(_stream(spark, database, maxBytesPerTrigger=1024 * 1024), count, tmp_path)
    assert (sum(counts), sum(totals)) == (20_000, 200_010_000)
    assert len(counts) > 3
