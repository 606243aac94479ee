"""The source `headwater.outbox` in Spark, on a real server: what messages it gives, in which order, and how often."""

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import monotonically_increasing_id, spark_partition_id

from headwater.capture.tables import prepare_tables
from headwater.embedded import EmbeddedPostgres
from headwater.errors import HeadwaterError, SinkError, SlotLost
from headwater.model import Lsn
from headwater.outbox import Event as OutboxEvent
from headwater.outbox import OutboxColumns, publish_many_sync, publish_sync
from headwater.outbox.checkpoint import CheckpointStore, prepare_outbox, take_checkpoint
from headwater.postgres.connect import Connection, connect_sync
from headwater.spark.feed import build_feed
from headwater.spark.letters import prepare_letters
from headwater.spark.pipeline import enroll
from headwater.spark.settings import MIB, NoopSinkSettings, OutboxLanes, OutboxSettings, PipelineSettings
from headwater.spark.shape import Shape
from headwater.spark.sinks import Span, Written
from headwater.spark.sources import register
from headwater.spark.sources.outbox.messages import unpack_messages
from headwater.spark.sources.outbox.source import OutboxDataSource
from tests.support.servers.embedded import prepared_database
from tests.support.spark.micro_batches import Offset, run_available
from tests.support.stories.outbox_story import NAME, Relay, drop_slot, find_checkpoint, generation_of, is_streaming
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)


class Recorder:
    """A sink that keeps the batches it was given, by lanes in their order; it fails for batches after the first `limit`."""

    name = "recorder"

    def __init__(self, limit: int | None = None) -> None:
        self.batches: list[dict[int, list[dict[str, Any]]]] = []
        self._limit = limit

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [message for batch in self.batches for lane in batch.values() for message in lane]

    @property
    def ids(self) -> list[str]:
        return [message["id"] for message in self.messages]

    @property
    def numbers(self) -> list[int]:
        return [json.loads(message["payload"])["n"] for message in self.messages]

    def open(self) -> None:
        """Nothing to do."""

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        assert shape is Shape.PACKED
        return Written(self.add(row.asDict() for row in batch.collect()))

    def add(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Keep the frames of a batch; returns how many messages they have."""
        found: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            found[row["lane"]] += unpack_messages(pa.py_buffer(row["frame"])).to_pylist()
        if self._limit is not None and len(self.batches) >= self._limit and found:
            raise SinkError(self.name, "it takes no more")
        if found:
            self.batches.append(dict(found))
        return sum(map(len, found.values()))

    def close(self) -> None:
        """Nothing to do."""


def _prepare(url: str) -> None:
    prepare_outbox(url)
    prepare_letters(url)
    prepare_tables(url)


@pytest.fixture
def database(postgres18: EmbeddedPostgres) -> Iterator[str]:
    """One with an outbox, and with the tables of pipelines."""
    with prepared_database(postgres18.url, _prepare) as url:
        yield url


@pytest.fixture
def outbox(database: str) -> Iterator[Connection]:
    with closing(connect_sync(database)) as connection:
        yield connection


def _settings(directory: Path, url: str, **source: Any) -> PipelineSettings:
    given = {"slot": NAME, "publication": NAME, "checkpoint_interval": timedelta(milliseconds=100), **source}
    return PipelineSettings(
        name=NAME,
        source=OutboxSettings(url=url, **given),
        sinks=(NoopSinkSettings(name="recorder"),),
        checkpoint=str(directory / "checkpoint"),
        state_url=url,
    )


def _run(settings: PipelineSettings, limit: int | None = None) -> Recorder:
    """Deliver what has committed by now, as a pipeline does it, but without Spark; with a limit, fail behind it."""
    recorder, feed = Recorder(limit), build_feed(settings)
    enroll(settings)

    def take(end: Offset, partitions: Sequence[Sequence[pa.RecordBatch]]) -> None:
        recorder.add(row for batches in partitions for batch in batches for row in batch.to_pylist())
        feed.delivered(end)

    def run() -> None:
        try:
            feed.provide(Event())
            run_available(OutboxDataSource(feed.options), Path(settings.checkpoint), take)
        except SlotLost as exc:
            feed.renew(str(exc), Event())
            run()

    with closing(feed), nullcontext() if limit is None else pytest.raises(SinkError, match="it takes no more"):
        run()
    return recorder


def _publish(connection: Connection, first: int, last: int, keys: int = 1) -> list[str]:
    """Numbered messages in one transaction."""
    events = [OutboxEvent("orders", "Placed", {"n": n}, f"k{n % keys}") for n in range(first, last + 1)]
    with connection.transaction():
        return [str(id) for id in publish_many_sync(connection, events)]


def _read(spark: SparkSession, directory: Path, url: str, **options: object) -> list[dict[str, Any]]:
    """Read what is there by now as a notebook does, with the numbers of partitions and of rows within them."""
    register(spark)
    found: list[dict[str, Any]] = []

    def take(batch: DataFrame, _: int) -> None:
        places = {"lane": spark_partition_id(), "place": monotonically_increasing_id()}
        found.extend(row.asDict() for row in batch.withColumns(places).collect())

    reader = spark.readStream.format("headwater.outbox").option("url", url).option("slot", NAME)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    writer = reader.load().writeStream.option("checkpointLocation", str(directory / "notebook")).foreachBatch(take)
    writer.trigger(availableNow=True).start().awaitTermination()
    return found


def test_a_notebook_gets_what_is_new_in_order_and_in_the_public_shape_whether_read_or_streamed_or_recovered(
    spark: SparkSession, database: str, outbox: Connection, tmp_path: Path
) -> None:
    with outbox.transaction():
        read = publish_sync(outbox, "orders", "Placed", {"n": 1}, key="k", headers={"traceparent": "00-a", "x": "ü"})
    (first,) = _read(spark, tmp_path, database)
    assert (first["id"], first["topic"], first["type"], first["key"]) == (str(read), "orders", "Placed", "k")
    assert (json.loads(first["payload"]), first["content_type"]) == ({"n": 1}, "application/json")
    assert first["headers"] == {"traceparent": "00-a", "x": "ü"}
    # A row does not tell where it was committed; its ordinal is its place among those that were read.
    assert (first["commit_lsn"], first["ordinal"], first["xid"]) == (None, 0, None)

    with outbox.transaction():
        streamed = publish_sync(outbox, "orders", "Paid", ["ü", None])
    ids = [str(streamed)]
    for n in range(1, 300, 50):
        ids += _publish(outbox, n, n + 49, keys=7)
    rows = _read(spark, tmp_path, database, keyed="true")
    assert sorted(row["id"] for row in rows) == sorted(ids)
    (second,) = (row for row in rows if row["id"] == str(streamed))
    assert (second["type"], second["key"], json.loads(second["payload"])) == ("Paid", None, ["ü", None])
    ((xid, at),) = outbox.execute(
        "select xid::text::bigint, created_at from headwater.outbox_message where id = %s", [streamed]
    ).fetchall()
    assert second["created_at"].astimezone(UTC) == at
    assert (second["ordinal"], second["xid"]) == (0, xid % (1 << 32))
    assert second["commit_lsn"] > 0
    by_lane: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["place"]):
        by_lane[row["lane"]].append((row["commit_lsn"], row["ordinal"]))
    assert len(by_lane) > 1
    assert all(places == sorted(places) for places in by_lane.values())

    third = _publish(outbox, 301, 310)
    drop_slot(database)
    assert [row["id"] for row in _read(spark, tmp_path, database)] == third


@pytest.mark.parametrize("payload", ["bytea", "jsonb"])
def test_a_table_of_ones_own_is_an_outbox_by_its_mapping(
    payload: str, database: str, outbox: Connection, tmp_path: Path
) -> None:
    outbox.execute(
        'create table "Event" (nr bigint generated always as identity primary key, kind text not null, body '
        + payload
        + " not null, trace text, tenant int, at timestamptz not null default clock_timestamp(),"
        " tx xid8 not null default pg_current_xact_id())"
    )
    columns = OutboxColumns(
        id="nr",
        type="kind",
        payload="body",
        created_at="at",
        xid="tx",
        topic_value="events",
        header_columns=(("traceparent", "trace"), ("tenant", "tenant")),
    )
    body = b'{"n": 1}' if payload == "jsonb" else bytes(range(256))
    settings = _settings(tmp_path, database, table='public."Event"', columns=columns)

    insertion = 'insert into "Event" (kind, body, trace, tenant) values (%s, %s, %s, %s)'

    def insert(kind: str, trace: str | None, tenant: int | None) -> None:
        value = body.decode() if payload == "jsonb" else body
        outbox.execute(insertion, [kind, value, trace, tenant])

    insert("Read", "00-a", 7)
    read = _run(settings)
    insert("Streamed", None, None)
    streamed = _run(settings)
    (first,), (second,) = read.messages, streamed.messages
    assert (first["id"], first["topic"], first["type"], first["key"]) == ("1", "events", "Read", None)
    assert (first["payload"], dict(first["headers"])) == (body, {"traceparent": "00-a", "tenant": "7"})
    assert (second["id"], second["topic"], second["type"]) == ("2", "events", "Streamed")
    assert (second["payload"], dict(second["headers"])) == (body, {})
    content_type = "application/octet-stream" if payload == "bytea" else "application/json"
    assert {first["content_type"], second["content_type"]} == {content_type}


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "streamed"])
def test_lanes_by_key_keep_the_order_of_each_key_and_are_more_than_one(
    is_read: bool, database: str, outbox: Connection, tmp_path: Path
) -> None:
    settings = _settings(tmp_path, database, lane_by=OutboxLanes.KEY, lanes=4)
    if not is_read:
        _run(settings)
    _publish(outbox, 1, 500, keys=40)
    (batch,) = _run(settings).batches
    assert len(batch) == 4
    keys = [{message["key"] for message in lane} for lane in batch.values()]
    assert sum(map(len, keys)) == len(set.union(*keys)) == 40
    for lane in batch.values():
        numbers = [json.loads(message["payload"])["n"] for message in lane]
        assert numbers == sorted(numbers)


def test_a_large_transaction_comes_in_several_batches_and_is_known_to_be_delivered_only_as_a_whole(
    database: str, outbox: Connection, tmp_path: Path
) -> None:
    settings = _settings(tmp_path, database, max_bytes=MIB // 16)
    _run(settings)
    ids = _publish(outbox, 1, 2000)
    part = _run(settings, limit=2)
    assert len(part.batches) == 2
    checkpoint = find_checkpoint(database)
    assert checkpoint is not None and checkpoint.delivered == 0
    rest = _run(settings)
    assert part.ids + rest.ids == ids
    drop_slot(database)
    (last,) = _publish(outbox, 2001, 2001)
    assert _run(settings).ids == [last]


def _forget_commit(settings: PipelineSettings) -> None:
    """As if Spark had died when all sinks had the last batch, and before it has noted that."""
    commits = Path(settings.checkpoint, "commits")
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
    for file in commits.glob(f"*{last}*"):
        file.unlink()


def test_a_batch_that_was_delivered_and_not_committed_by_spark_is_not_delivered_again(
    database: str, outbox: Connection, tmp_path: Path
) -> None:
    settings = _settings(tmp_path, database, recovery_rows=10)
    ids = _publish(outbox, 1, 10)
    assert _run(settings).ids == ids
    # Read from the table; the end of the reading is a batch as well.
    assert is_streaming(database)
    _forget_commit(settings)
    (later,) = _publish(outbox, 11, 11)
    assert _run(settings).ids == [later]
    # Streamed.
    _forget_commit(settings)
    (last,) = _publish(outbox, 12, 12)
    assert _run(settings).ids == [last]


def test_a_recovery_goes_on_behind_the_last_part_that_was_delivered(
    database: str, outbox: Connection, tmp_path: Path
) -> None:
    settings = _settings(tmp_path, database, recovery_rows=10)
    ids = _publish(outbox, 1, 95)
    first = _run(settings, limit=4)
    assert first.ids == ids[:40]
    checkpoint = find_checkpoint(database)
    assert checkpoint is not None
    assert (checkpoint.phase, checkpoint.recovered) == ("recovering", 40)
    shutil.rmtree(settings.checkpoint)
    assert _run(settings).ids == ids[40:]


def test_what_a_recovery_had_delivered_when_its_slot_was_lost_too_is_not_delivered_again(
    database: str, outbox: Connection, tmp_path: Path
) -> None:
    settings = _settings(tmp_path, database, recovery_rows=10)
    ids = _publish(outbox, 1, 45)
    assert _run(settings, limit=2).ids == ids[:20]
    late = outbox.execute("select min(created_at) - interval '1 hour' from headwater.outbox_message").fetchone()
    assert late is not None
    drop_slot(database)
    # Older by its clock than all that was read, and yet new: the readings before did not see it.
    outbox.execute(
        "insert into headwater.outbox_message (created_at, topic, type, payload) values (%s, 't', 'T', '{\"n\": 0}')", late
    )
    assert _run(settings, limit=2).numbers == [0, *range(21, 40)]
    drop_slot(database)
    more = _publish(outbox, 46, 47)
    assert _run(settings).ids == [*ids[39:], *more]


def test_a_recovery_goes_on_whatever_dates_look_like_in_the_database(postgres18: EmbeddedPostgres, tmp_path: Path) -> None:
    with prepared_database(postgres18.url, _prepare) as url:
        with closing(connect_sync(url)) as connection:
            name = connection.info.dbname
            connection.execute(f"alter database {name} set datestyle = 'ISO, DMY'".encode())
            connection.execute(f"alter database {name} set timezone = 'America/New_York'".encode())
            # Dates that are others when day and month change places.
            for n, day in enumerate(("2026-01-12", "2026-02-03", "2026-03-02", "2026-04-01", "2026-12-01"), 1):
                connection.execute(
                    "insert into headwater.outbox_message (created_at, topic, type, payload) values (%s, 't', 'T', %s)",
                    [datetime.fromisoformat(f"{day}T12:00:00+00:00"), json.dumps({"n": n})],
                )
        settings = _settings(tmp_path, url, recovery_rows=1)
        assert _run(settings, limit=2).numbers == [1, 2]
        shutil.rmtree(settings.checkpoint)
        assert _run(settings, limit=1).numbers == [3]
        _forget_commit(settings)
        assert _run(settings).numbers == [4, 5]


def test_without_a_checkpoint_everything_in_the_table_is_delivered_in_the_order_of_writing(
    any_database: str, tmp_path: Path
) -> None:
    prepare_outbox(any_database)
    with closing(connect_sync(any_database)) as connection:
        for n, minutes in ((1, 3), (2, 1), (3, 2)):
            connection.execute(
                "insert into headwater.outbox_message (created_at, topic, type, payload) "
                "values (now() - make_interval(mins => %s), 't', 'T', %s)",
                [minutes, json.dumps({"n": n})],
            )
        settings = _settings(tmp_path, any_database)
        assert _run(settings).numbers == [1, 3, 2]
        assert _run(settings).numbers == []


def test_a_lost_checkpoint_directory_of_spark_loses_nothing_and_repeats_nothing_that_was_confirmed(
    database: str, outbox: Connection, tmp_path: Path
) -> None:
    settings = _settings(tmp_path, database)
    _run(settings)
    assert _run(settings).ids == []
    ids = _publish(outbox, 1, 50)
    assert _run(settings).ids == ids
    shutil.rmtree(settings.checkpoint)
    later = _publish(outbox, 51, 100)
    assert _run(settings).ids == later


def test_nothing_is_written_to_the_database_while_nothing_happens(
    spark: SparkSession, database: str, outbox: Connection, tmp_path: Path
) -> None:
    recorder = Recorder()
    with Relay(spark, _settings(tmp_path, database), [recorder]) as relay:
        eventually(lambda: is_streaming(database), seconds=90)
        ids = _publish(outbox, 1, 100)
        eventually(lambda: recorder.ids == ids, seconds=60)
        # What follows a batch: the checkpoint and what is confirmed.
        quiet = _Quiet(outbox)
        eventually(quiet.has_lasted, seconds=60)
        relay.require_life()


class _Quiet:
    """Looks for some seconds in which no transaction wrote anything: time itself is the subject."""

    def __init__(self, connection: Connection, seconds: float = 4) -> None:
        self._connection, self._seconds = connection, seconds
        self._last, self._since = self._look(), time.monotonic()

    def has_lasted(self) -> bool:
        now = self._look()
        # The server itself notes every now and then which transactions run.
        if now[0] != self._last[0] or now[1] > self._last[1] + 1024:
            self._last, self._since = now, time.monotonic()
        return time.monotonic() - self._since > self._seconds

    def _look(self) -> tuple[int, Lsn]:
        ((xid, lsn),) = self._connection.execute(
            "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_wal_insert_lsn()"
        ).fetchall()
        return xid, lsn


def test_a_checkpoint_that_another_run_has_taken_moves_for_that_one_alone(database: str, outbox: Connection) -> None:
    table = "headwater.outbox_message"
    first = take_checkpoint(database, NAME, table)
    second = take_checkpoint(database, NAME, table)
    assert second > first
    with closing(CheckpointStore(database, NAME, first)) as old, closing(CheckpointStore(database, NAME, second)) as new:
        assert new.find().epoch == second
        for write in (old.find, lambda: old.save_delivered("", [5]), lambda: old.save_newest("", datetime.now(UTC))):
            with pytest.raises(HeadwaterError, match="is not this run's any more"):
                write()
        new.save_delivered("", [5])
        assert new.delivered() == (5,)


TIMED = """
create table timed (
    id uuid primary key default gen_random_uuid(),
    at timestamptz not null,
    body json not null
)
"""
TIMED_COLUMNS = OutboxColumns(id="id", payload="body", created_at="at", topic_value="t", type_value="T")


@pytest.mark.parametrize("is_read", [False, True], ids=["streamed", "read"])
def test_the_skew_covers_a_clock_that_is_behind_by_less_also_right_after_a_recovery(
    is_read: bool, database: str, outbox: Connection, tmp_path: Path
) -> None:
    """A row of a second ago is written when newer ones are delivered; then the slot is lost."""
    outbox.execute(TIMED)
    settings = _settings(tmp_path, database, table="public.timed", columns=TIMED_COLUMNS)
    now = datetime.now(UTC)

    def insert(n: int, at: datetime) -> None:
        outbox.execute("insert into timed (at, body) values (%s, %s)", [at, json.dumps({"n": n})])

    if not is_read:
        _run(settings)
    insert(1, now - timedelta(seconds=3))
    insert(2, now)
    assert _run(settings).numbers == [1, 2]
    insert(3, now - timedelta(seconds=1))
    drop_slot(database)
    found = _run(settings).numbers
    assert 3 in found
    # What is older than the skew is not delivered again.
    assert 1 not in found


def test_a_slot_that_is_lost_before_its_batch_was_delivered_loses_none_of_it(
    database: str, outbox: Connection, tmp_path: Path
) -> None:
    """Spark has logged the range, and asks for it again when the slot is another one."""
    settings = _settings(tmp_path, database)
    _run(settings)
    ids = _publish(outbox, 1, 20)
    assert _run(settings, limit=0).ids == []
    lost = generation_of(database)
    drop_slot(database)
    found = _run(settings).ids
    assert generation_of(database) != lost
    assert found == ids
