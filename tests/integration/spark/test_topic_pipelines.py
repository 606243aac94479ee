"""Pipelines from and to topics, on real servers: what is delivered, in which order, also when batches come again."""

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import DataFrame, SparkSession

from headwater import topics
from headwater.brokers.nats.access import NatsAccess
from headwater.cli.pipeline_file.load import load
from headwater.embedded import EmbeddedNats, EmbeddedPostgres
from headwater.errors import SettingsError, SinkError, SinkFenced, SinkUnavailable
from headwater.postgres.connect import Connection, connect_sync
from headwater.spark.letters import State, find_letter, list_letters
from headwater.spark.pipeline import Pipeline, prepare
from headwater.spark.settings import PipelineSettings
from headwater.spark.shape import Shape
from headwater.spark.sinks import Sink, Span, Written
from headwater.spark.sinks.build import build_sinks
from headwater.spark.sinks.replay import replay
from headwater.spark.state import SinkReport
from headwater.topics import Message
from tests.support.brokers.nats_streams import fresh_namespace, stored
from tests.support.servers.embedded import fresh_database
from tests.support.stories.outbox_story import Relay
from tests.support.topics.topic_pipelines import changes_of, messages_of, write_pipeline
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with closing(connect_sync(database)) as connection:
        topics.prepare_topics(connection)
        topics.create_sync(connection, "orders", partitions=3)
        connection.execute("create table item (id int primary key, name text)")
        yield connection


@pytest.fixture
def target(postgres18: EmbeddedPostgres) -> Iterator[Connection]:
    with fresh_database(postgres18.url) as url, closing(connect_sync(url)) as connection:
        yield connection


def url_of(connection: Connection) -> str:
    info = connection.info
    return f"postgresql://{info.user}:{info.password}@{info.host}:{info.port}/{info.dbname}?sslmode=disable"


def run(spark: SparkSession, settings: PipelineSettings) -> SinkReport:
    """What became of what was there, at the only sink."""
    pipeline = Pipeline(spark, settings, build_sinks(settings), Event())
    pipeline.run(once=True)
    (found,) = pipeline.report.sinks.values() or [SinkReport()]
    return found


def forget_commit(settings: PipelineSettings) -> None:
    """As if the run had died between the sinks and Spark's note that they are done."""
    commits = Path(settings.checkpoint, "commits")
    newest = max((file for file in commits.iterdir() if file.name.isdecimal()), key=lambda file: int(file.name))
    for file in (newest, commits / f".{newest.name}.crc"):
        file.unlink(missing_ok=True)


def append(connection: Connection, first: int, count: int) -> None:
    for n in range(first, first + count):
        topics.append_sync(
            connection,
            "orders",
            [Message({"n": n}, f"key {n % 7}", {"type": "made", "text": 'a "b" \\ c\t'} if n % 2 else None)],
        )


@pytest.fixture
def to_table(database: str, connection: Connection, target: Connection, tmp_path: Path) -> PipelineSettings:
    source = {"type": "topic", "url": database, "topic": "orders", "max_rows": 20}
    sink = {"type": "postgres", "url": url_of(target), "table": "public.message"}
    return load(write_pipeline(tmp_path, "copy", source, sink), {})


def rows_of(target: Connection) -> list[int]:
    found = target.execute(
        "select convert_from(payload, 'UTF8')::json ->> 'n' from message order by topic, partition, \"offset\""
    )
    return sorted(int(n) for (n,) in found)


def test_messages_become_rows_with_all_that_they_had_once_also_when_a_batch_or_the_checkpoint_directory_is_lost(
    spark: SparkSession, connection: Connection, target: Connection, to_table: PipelineSettings
) -> None:
    append(connection, 0, 30)
    topics.append_sync(connection, "orders", [Message(bytes(range(256)), None, None)])
    run(spark, to_table)
    found = target.execute('select partition, "offset", key, payload, headers, created_at from message order by 1, 2')
    expected = [
        (one.partition, one.offset, one.key, one.payload, one.headers, one.created_at)
        for one in messages_of(connection, "orders")
    ]
    assert found.fetchall() == expected

    forget_commit(to_table)
    target.execute("delete from message where key is null or key = 'key 3'")
    append(connection, 30, 10)
    assert run(spark, to_table).skipped > 0, "the last batch came again"
    kept = [n for n in range(30) if n % 7 != 3]
    assert rows_of(target) == [*kept, *range(30, 40)], "rows that were there, and deleted, stay away; later ones are there"

    shutil.rmtree(to_table.checkpoint)
    connection.execute("update headwater.topic_cursor set next_offset = greatest(next_offset - 5, 0)")
    append(connection, 40, 10)
    run(spark, to_table)
    assert rows_of(target) == [*kept, *range(30, 50)]


def test_a_run_that_was_taken_over_cannot_write_to_the_table_any_more(
    spark: SparkSession, connection: Connection, target: Connection, to_table: PipelineSettings
) -> None:
    append(connection, 0, 10)
    (sink,) = build_sinks(to_table)
    (later,) = build_sinks(to_table)

    class Overtaken:
        name = sink.name
        open, close = staticmethod(sink.open), staticmethod(sink.close)

        @staticmethod
        def write(*args: object) -> object:
            later.open()
            return sink.write(*args)  # type: ignore[arg-type]

    with pytest.raises(SinkFenced):
        Pipeline(spark, to_table, [Overtaken()], Event()).run(once=True)  # type: ignore[list-item]
    later.close()
    assert rows_of(target) == []


def test_a_table_that_cannot_hold_messages_is_refused_before_anything_is_read(
    spark: SparkSession, connection: Connection, target: Connection, to_table: PipelineSettings
) -> None:
    target.execute("create table message (topic text, payload text)")
    append(connection, 0, 1)
    with pytest.raises(SinkError, match="cannot take messages"):
        run(spark, to_table)


class Twice:
    """A sink that has every batch written twice, as one whose commit was lost; counts what is left out the second time."""

    def __init__(self, sink: Sink) -> None:
        self.name, self._sink = sink.name, sink
        self.open, self.close = sink.open, sink.close
        self.skipped = 0

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        first = self._sink.write(batch, shape, span)
        self.skipped += self._sink.write(batch, shape, span).skipped
        return first


def run_twice(spark: SparkSession, settings: PipelineSettings) -> int:
    """Deliver every batch twice; returns how many messages were left out."""
    (sink,) = build_sinks(settings)
    twice = Twice(sink)
    Pipeline(spark, settings, [twice], Event()).run(once=True)
    return twice.skipped


def test_messages_go_to_a_broker_once_under_the_name_of_their_place(
    spark: SparkSession, database: str, connection: Connection, nats: EmbeddedNats, tmp_path: Path
) -> None:
    name = fresh_namespace().lower()
    source = {"type": "topic", "url": database, "topic": "orders", "max_rows": 20}
    sink = {"type": "nats", "url": nats.url, "subject": name + ".{topic}", "stream": name, "stream_subjects": [f"{name}.>"]}
    settings = load(write_pipeline(tmp_path, "copy", source, sink), {})
    append(connection, 0, 60)
    assert run_twice(spark, settings) == 60
    found = stored(NatsAccess(url=nats.url), name)
    expected = {f"orders/{one.partition}/{one.offset}": one for one in messages_of(connection, "orders")}
    ids = [one.headers["Nats-Msg-Id"] for one in found]
    assert Counter(ids) == Counter(expected.keys()), "lost 0, twice 0"
    assert [one.body for one in found] == [expected[id].payload for id in ids]
    assert_ordered([(str(expected[id].key), json.loads(one.body)["n"]) for id, one in zip(ids, found, strict=True)])


def assert_ordered(arrived: list[tuple[str, int]]) -> None:
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, number in arrived:
        by_key[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_a_transform_of_messages_sees_offset_and_partition_and_leaves_the_order_of_keys(
    spark: SparkSession, connection: Connection, target: Connection, to_table: PipelineSettings, tmp_path: Path
) -> None:
    file = tmp_path / "headwater.toml"
    file.write_text(file.read_text() + '\n[transform]\nfilter = "commit_lsn % 2 = 0"\n')
    settings = load(file, {})
    append(connection, 0, 40)
    assert run_twice(spark, settings) > 0
    found = target.execute('select partition, "offset" from message order by 1, 2').fetchall()
    assert found == [
        (one.partition, one.offset)
        for one in messages_of(connection, "orders")
        if one.offset is not None and one.offset % 2 == 0
    ]


@pytest.fixture(params=["table", "key"])
def from_changes(request: pytest.FixtureRequest, database: str, connection: Connection, tmp_path: Path) -> PipelineSettings:
    source = {
        "type": "changes",
        "url": database,
        "tables": ["public.item"],
        "slot": f"k_{tmp_path.name[-8:]}".lower().replace("-", "_"),
        "lane_by": request.param,
    }
    return load(write_pipeline(tmp_path, "copy", source, {"type": "topic", "topic": "orders"}), {})


def change(connection: Connection, first: int, count: int) -> None:
    for n in range(first, first + count):
        connection.execute("insert into item values (%s, %s)", [n, f"first {n}"])
        connection.execute("update item set name = %s where id = %s", [f"second {n}", n])


class Stumbling(Twice):
    """A sink whose first batch of changes is written and then failed, so that it comes again; rows are written twice."""

    def __init__(self, sink: Sink) -> None:
        super().__init__(sink)
        self.stumbled = False

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        if span.loading is not None:
            return super().write(batch, shape, span)
        written = self._sink.write(batch, shape, span)
        self.skipped += written.skipped
        if written.changes and not self.stumbled:
            self.stumbled = True
            raise SinkUnavailable(self.name, "as was asked for")
        return written


def told(connection: Connection) -> list[tuple[str, int, str]]:
    return [(one["op"], one["after"]["id"], one["after"]["name"]) for one in changes_of(connection, "orders")]


def test_rows_and_changes_become_messages_once_also_when_a_batch_comes_again(
    spark: SparkSession, connection: Connection, from_changes: PipelineSettings
) -> None:
    change(connection, 0, 30)
    rows = [("r", n, f"second {n}") for n in range(30)]
    changes = [entry for n in range(30, 55) for entry in (("c", n, f"first {n}"), ("u", n, f"second {n}"))]
    (sink,) = build_sinks(from_changes)
    stumbling = Stumbling(sink)
    with Relay(spark, from_changes, [stumbling]) as relay:
        eventually(lambda: stumbling.skipped == 30, seconds=120)
        assert sorted(told(connection)) == rows, "rows that were there are read, and appended once"
        change(connection, 30, 25)
        # The first batch of them is written before it fails, so its messages come again.
        eventually(lambda: stumbling.skipped > 30 and len(told(connection)) >= len(rows + changes), seconds=120)
        relay.require_life()
    assert Counter(told(connection)) == Counter(rows + changes), "lost 0, twice 0"
    messages = messages_of(connection, "orders")
    assert len({one.partition for one in messages}) > 1
    assert {(one.headers or {})["table"] for one in messages} == {"public.item"}
    by_key: dict[str, list[str]] = defaultdict(list)
    for one in messages:
        by_key[str(one.key)].append((one.headers or {})["op"])
    assert all(by_key[json.dumps({"id": n}).replace(" ", "")] == ["c", "u"] for n in range(30, 55))


def test_a_transform_of_rows_and_changes_is_appended_once_too(
    spark: SparkSession, connection: Connection, from_changes: PipelineSettings, tmp_path: Path
) -> None:
    file = tmp_path / "headwater.toml"
    file.write_text(file.read_text() + "\n[transform]\nfilter = \"op <> 'u'\"\n")
    settings = load(file, {})
    change(connection, 0, 5)
    (sink,) = build_sinks(settings)
    twice = Twice(sink)
    with Relay(spark, settings, [twice]) as relay:
        eventually(lambda: twice.skipped == 5, seconds=120)
        change(connection, 5, 20)
        eventually(lambda: twice.skipped >= 25, seconds=120)
        relay.require_life()
    assert twice.skipped == 25
    expected = [("r", n, f"second {n}") for n in range(5)] + [("c", n, f"first {n}") for n in range(5, 25)]
    assert Counter(told(connection)) == Counter(expected)


def test_a_change_that_is_too_large_for_the_topic_is_a_dead_letter_and_the_others_go_on(
    spark: SparkSession, database: str, connection: Connection, tmp_path: Path
) -> None:
    topics.create_sync(connection, "small", max_bytes=2000)
    slot = f"k_{tmp_path.name[-8:]}".lower().replace("-", "_")
    source = {"type": "changes", "url": database, "tables": ["public.item"], "slot": slot, "snapshot": "never"}
    settings = load(write_pipeline(tmp_path, "copy", source, {"type": "topic", "topic": "small"}), {})
    prepare(settings)
    connection.execute("insert into item values (1, 'a'), (2, repeat('b', 3000)), (3, 'c')")
    run(spark, settings)
    assert [one["after"]["id"] for one in changes_of(connection, "small")] == [1, 3]
    (letter,) = list_letters(connection, pipeline="copy", state=State.OPEN)
    assert "the topic takes at most 2000" in letter.reason
    stored_letter = find_letter(connection, letter.id)
    assert stored_letter is not None
    (sink,) = build_sinks(settings)
    with closing(sink), pytest.raises(SinkError, match="still cannot be appended"):
        replay(sink, stored_letter.letter)
    connection.execute("update headwater.topic set max_bytes = 10000 where name = 'small'")
    with closing(sink):
        replay(sink, stored_letter.letter)
    assert [one["after"]["id"] for one in changes_of(connection, "small")] == [1, 3, 2]


def test_a_topic_that_is_not_there_is_told_with_the_command_that_makes_it(
    spark: SparkSession, connection: Connection, from_changes: PipelineSettings
) -> None:
    connection.execute("delete from headwater.topic")
    with pytest.raises(SinkError, match="headwater topics create orders"):
        run(spark, from_changes)


@pytest.mark.parametrize(
    ("source", "sink", "said"),
    [
        ({"type": "topic", "topic": "a"}, {"type": "postgres", "url": ""}, "needs `table`"),
        ({"tables": ["public.a"]}, {"type": "postgres", "url": "", "table": "public.b"}, "leave `table` out"),
        ({"type": "topic", "topic": "a"}, {"type": "topic", "topic": "b"}, "takes changes of tables"),
        ({"type": "outbox"}, {"type": "topic", "topic": "b"}, "takes changes of tables"),
        ({"type": "topic", "topic": "a"}, {"type": "parquet", "path": "x"}, "a topic has messages"),
        ({"type": "topic", "topic": "a"}, {"type": "postgres", "url": "", "table": "b"}, "write it as schema.table"),
        ({"type": "topic"}, {"type": "noop"}, "source.topic: is missing"),
        ({"type": "topic", "topic": "a", "max_bytes": "2GiB"}, {"type": "noop"}, "between 64KiB and 1GiB"),
    ],
)
def test_what_does_not_go_together_is_refused_when_the_file_is_read(
    tmp_path: Path, source: dict[str, object], sink: dict[str, object], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        load(write_pipeline(tmp_path, "copy", source, sink), {})
