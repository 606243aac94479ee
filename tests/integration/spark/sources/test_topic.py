"""The source `headwater.topic` in Spark, on a real server: what it gives, in which order, and how the group follows."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater import topics
from headwater.errors import HeadwaterError, LeaseLost, PositionError, PositionExpired, SettingsError, TopicError
from headwater.postgres.connect import Connection, connect_sync
from headwater.spark.failure import translate
from headwater.spark.sources import register
from headwater.spark.sources.topic import planner
from headwater.spark.sources.topic.options import parse_options
from headwater.spark.sources.topic.source import TopicDataSource
from headwater.topics import Message, Subscriber
from tests.support.spark.micro_batches import run_available

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with closing(connect_sync(database)) as connection:
        topics.prepare_topics(connection)
        topics.create_sync(connection, "orders", partitions=2)
        yield connection


def append(connection: Connection, first: int, count: int, *, topic: str = "orders", frame: int = 4) -> None:
    """Messages with numbers from `first` on, in appends of a few."""
    for start in range(first, first + count, frame):
        numbers = range(start, min(start + frame, first + count))
        topics.append_sync(
            connection, topic, [Message(b"%d" % n, f"key {n % 5}", {"n": str(n), "type": "made"}) for n in numbers]
        )


class Reading:
    """Queries with one checkpoint directory, each of which ends where the topic is by then; without `spark`, as it asks."""

    def __init__(self, directory: Path, url: str, *, spark: SparkSession | None = None, **options: str) -> None:
        self._spark, self._checkpoint = spark, directory / "checkpoint"
        self.options = {"url": url, "topic": "orders", **options}
        self.batches: list[list[Any]] = []
        self.failed: list[Any] = []
        self.in_batch: Callable[[], None] = lambda: None

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.batches for row in batch]

    @property
    def numbers(self) -> list[int]:
        return sorted(int(bytes(row["payload"])) for row in self.rows)

    def run(self, fails_at: int | None = None) -> None:
        """Read what is there; raises what a query fails for. Batches are kept, but for the one at which it fails."""

        def keep(rows: list[Any]) -> None:
            self.in_batch()
            if fails_at is not None and len(self.batches) == fails_at:
                self.failed = rows
                raise RuntimeError("as was asked for")
            self.batches.append(rows)

        if self._spark is not None:
            self._run_in_spark(self._spark, keep)
            return
        run_available(
            TopicDataSource(self.options),
            self._checkpoint,
            lambda _, partitions: keep([row for part in partitions for batch in part for row in batch.to_pylist()]),
        )

    def _run_in_spark(self, spark: SparkSession, keep: Callable[[list[Any]], None]) -> None:
        register(spark)
        stream = spark.readStream.format("headwater.topic").options(**self.options).load()
        writer = stream.writeStream.foreachBatch(lambda batch, _: keep(batch.collect()))
        query = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as exc:
            raise translate(exc) from exc
        finally:
            query.stop()


def cursors(connection: Connection, group: str) -> dict[int, int]:
    found = connection.execute(
        "select c.partition, c.next_offset from headwater.topic_cursor c join headwater.topic_group g on g.id = c.group_id"
        " where g.name = %s",
        [group],
    )
    return dict(found.fetchall())


def offsets(rows: list[Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


def test_a_topic_is_read_at_once_without_messages_and_with_all_of_them_in_their_places_as_staged(
    spark: SparkSession, database: str, connection: Connection
) -> None:
    register(spark)
    frame = spark.read.format("headwater.topic").options(url=database, topic="orders").load()
    assert frame.collect() == []
    append(connection, 0, 50)
    rows = spark.read.format("headwater.topic").options(url=database, topic="orders").load().collect()
    assert sorted(int(bytes(row["payload"])) for row in rows) == list(range(50))
    assert all(row["headers"] == {"n": bytes(row["payload"]).decode(), "type": "made"} for row in rows)
    assert {row["topic"] for row in rows} == {"orders"}
    assert all(row["created_at"] is not None for row in rows)
    for found in offsets(rows).values():
        assert sorted(found) == list(range(len(found)))
    where = {(row["key"], row["partition"]) for row in rows}
    assert len(where) == 5, "a key has one partition"


def test_a_batch_that_failed_comes_again_as_it_was_and_the_cursors_of_the_group_follow_what_spark_has_committed(
    spark: SparkSession, database: str, connection: Connection, tmp_path: Path
) -> None:
    first = Reading(tmp_path / "first", database, spark=spark, maxRowsPerTrigger="10", group="billing")
    append(connection, 0, 30)
    with pytest.raises(HeadwaterError, match="as was asked for"):
        first.run(fails_at=1)
    reached = cursors(connection, "billing")
    assert sum(reached.values()) == len(first.rows) == 10, "the group is not past what Spark has committed"
    append(connection, 30, 30)
    first.run()
    assert first.batches[1] == first.failed, "the same messages, though more were appended"
    assert first.numbers == list(range(60))
    assert max(map(len, first.batches)) == 10
    for batch in first.batches:
        for found in offsets(batch).values():
            assert found == sorted(found)
    assert sum(cursors(connection, "billing").values()) == 60
    append(connection, 60, 5)
    second = Reading(tmp_path / "second", database, spark=spark, group="billing")
    second.run()
    assert second.numbers == list(range(60, 65)), "a new checkpoint directory begins where the group is"
    assert sum(cursors(connection, "billing").values()) == 65


def test_a_new_group_may_begin_behind_the_newest_message(database: str, connection: Connection, tmp_path: Path) -> None:
    append(connection, 0, 20)
    reading = Reading(tmp_path, database, group="billing", startingOffsets="latest", maxRowsPerTrigger="3")
    reading.run()
    append(connection, 20, 5)
    reading.run()
    assert reading.numbers == list(range(20, 25))


async def test_a_group_with_members_is_refused_and_goes_on_where_they_were_when_they_have_left(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    append(connection, 0, 5)
    reading = Reading(tmp_path, database, group="billing")
    async with Subscriber(database, "orders", group="billing") as member:
        read = 0
        async for batch in member:
            read += len(batch.messages)
            await batch.commit()
            if read == 5:
                break
        with pytest.raises(TopicError, match="has members that read it"):
            await asyncio.to_thread(reading.run)
    append(connection, 5, 5)
    again = Reading(tmp_path / "again", database, group="billing")
    await asyncio.to_thread(again.run)
    assert again.numbers == list(range(5, 10))


async def test_a_member_that_joins_shuts_a_query_out_and_goes_on_where_it_was(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    append(connection, 0, 20)
    reading = Reading(tmp_path, database, group="billing", maxRowsPerTrigger="10")
    await asyncio.to_thread(reading.run)
    append(connection, 20, 20)
    found: list[int] = []

    async def join() -> None:
        async with Subscriber(database, "orders", group="billing") as member:
            async for batch in member:
                found.extend(int(one.payload) for one in batch.messages)  # type: ignore[call-overload]
                await batch.commit()
                if len(found) >= 20:
                    return

    reading.in_batch = lambda: asyncio.run(join())
    with pytest.raises(LeaseLost, match="was taken over"):
        await asyncio.to_thread(reading.run)
    assert sorted(found) == list(range(20, 40))
    assert sum(cursors(connection, "billing").values()) == 40


def test_a_paused_group_gets_nothing(database: str, connection: Connection, tmp_path: Path) -> None:
    reading = Reading(tmp_path, database, group="billing")
    append(connection, 0, 5)
    reading.run()
    connection.execute("update headwater.topic_group set is_paused = true")
    append(connection, 5, 5)
    reading.run()
    assert reading.numbers == list(range(5))
    connection.execute("update headwater.topic_group set is_paused = false")
    reading.run()
    assert reading.numbers == list(range(10))


def drop_oldest(connection: Connection, count: int) -> None:
    """As retention does: the messages go, and the partition says which is the oldest."""
    connection.execute("delete from headwater.topic_log_1 where partition = 0 and last_offset < %s", [count])
    connection.execute("update headwater.topic_partition set first_offset = %s where partition = 0", [count])


@pytest.fixture
def single(database: str) -> Iterator[Connection]:
    with closing(connect_sync(database)) as connection:
        topics.prepare_topics(connection)
        topics.create_sync(connection, "orders", partitions=1)
        yield connection


def test_messages_that_were_dropped_before_they_were_read_are_told_with_the_oldest_and_the_remedy(
    database: str, single: Connection, tmp_path: Path
) -> None:
    reading = Reading(tmp_path, database, maxRowsPerTrigger="4")
    append(single, 0, 4)
    reading.run()
    append(single, 4, 20)
    topics.number_sync(single, topics.find_sync(single, "orders"))
    drop_oldest(single, 12)
    with pytest.raises(PositionExpired, match="no message 4 any more, the oldest is 12; set `onExpired` to earliest"):
        reading.run()
    reading.options["onExpired"] = "earliest"
    reading.run()
    assert reading.numbers == [*range(4), *range(12, 24)]


def test_messages_that_are_dropped_while_a_batch_is_read_fail_it_rather_than_leave_a_gap(
    spark: SparkSession, database: str, single: Connection
) -> None:
    append(single, 0, 20)
    register(spark)
    topic = topics.find_sync(single, "orders")
    topics.number_sync(single, topic)
    frame = spark.read.format("headwater.topic").options(url=database, topic="orders").load()
    single.execute("delete from headwater.topic_log_1 where last_offset < 12")
    with pytest.raises(Exception, match="no message 0 any more") as failed:
        frame.collect()
    assert isinstance(translate(failed.value), PositionExpired)


def test_a_checkpoint_directory_of_a_topic_that_was_dropped_is_refused(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    reading = Reading(tmp_path, database)
    append(connection, 0, 4)
    reading.run()
    connection.execute("delete from headwater.topic")
    topics.create_sync(connection, "orders", partitions=2)
    append(connection, 0, 4)
    with pytest.raises(PositionError, match="of one that was dropped since"):
        reading.run()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "orders", "grop": "a"}, "did you mean 'group'"),
        ({"topic": ""}, "needs the option 'topic'"),
        ({"topic": "orders", "shape": "wire"}, "table, message or packed"),
        ({"topic": "orders", "startingOffsets": "newest"}, "earliest, latest"),
        ({"topic": "nothing"}, "there is no topic 'nothing'"),
        ({"topic": "orders", "group": "a"}, "moves the cursors of no group"),
    ],
)
def test_bad_options_are_told_with_what_to_write(
    database: str, connection: Connection, options: dict[str, str], said: str
) -> None:
    source = TopicDataSource({"url": database, **options})
    with pytest.raises((SettingsError, TopicError), match=said):
        source.reader(source.schema()).partitions()


@pytest.mark.parametrize(
    ("options", "said", "kind"),
    [
        ({"topic": "orders", "grop": "a"}, "did you mean 'group'", SettingsError),
        ({"topic": "nothing"}, "there is no topic 'nothing'", TopicError),
    ],
)
def test_bad_options_are_told_through_spark_too(
    spark: SparkSession,
    database: str,
    connection: Connection,
    options: dict[str, str],
    said: str,
    kind: type[HeadwaterError],
) -> None:
    register(spark)
    with pytest.raises(Exception, match=said) as failed:
        spark.read.format("headwater.topic").options(url=database, **options).load().collect()
    assert isinstance(translate(failed.value), kind)


def test_a_large_range_is_cut_at_frames_into_tasks_that_leave_nothing_out(
    database: str, single: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(single, 0, 100)
    monkeypatch.setattr(planner, "_PIECE_BYTES", 200)
    parts = planner.plan_all(parse_options({"url": database, "topic": "orders"}))
    assert len(parts) > 3
    bounds = [(part.first, part.until) for part in parts]  # type: ignore[attr-defined]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == 100
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
