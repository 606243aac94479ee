"""The source `headwater.creek` on a real NATS: exactly re-readable, by whoever asks, and in Spark."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import call
from headwater.creek.framing import packets
from headwater.creek.names import Generation, Kind, Names
from headwater.embedded import EmbeddedNats
from headwater.errors import BrokerUnavailable, MessageError, PositionError
from headwater.spark.sources import register
from headwater.spark.sources.creek.options import parse_options
from headwater.spark.sources.creek.source import CreekReader
from tests.support.brokers.nats_streams import fresh_namespace
from tests.support.capture.pgoutput_writer import insert, relation, update
from tests.support.creek.stream_feed import Feed

INT4, TEXT = 23, 25
ORDERS = relation(100, "orders", [("id", INT4, -1, True), ("note", TEXT, -1, False)])
ITEMS = relation(101, "items", [("id", INT4, -1, True), ("note", TEXT, -1, False)])

OPENED: list[CreekReader] = []


@pytest.fixture(params=Generation, ids=["gen1", "gen2"])
def feed(nats: EmbeddedNats, request: pytest.FixtureRequest) -> Iterator[Feed]:
    access = NatsAccess(url=nats.url, timeout=timedelta(seconds=5))
    feed = Feed(access, Names(fresh_namespace(), "shop", request.param))
    yield feed
    while OPENED:
        OPENED.pop().stop()
    feed.close()


def options(feed: Feed, tables: str = "shop.public.orders", **more: str) -> dict[str, str]:
    return {
        "url": feed.access.url,
        "timeoutSeconds": "5",
        "namespace": feed.names.root,
        "generation": feed.names.generation.value,
        "tables": tables,
        **more,
    }


def reader(feed: Feed, tables: str = "shop.public.orders", **more: str) -> CreekReader:
    """It is stopped when the test ends."""
    OPENED.append(CreekReader(parse_options(options(feed, tables, **more))))
    return OPENED[-1]


def rows(reader: CreekReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


def batches(reader: CreekReader, start: dict[str, Any] | None = None) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """All batches that there are."""
    at, found = start or reader.initialOffset(), []
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        found.append((at, end))
        rows(reader, at, end)
        at = end
    return found


def test_a_range_gives_the_same_rows_in_another_process(feed):
    for number in range(5):
        feed.transaction(1000 + number, [ORDERS, insert(100, [str(number), "a"]), ITEMS, insert(101, [str(number), "b"])])
    mine = reader(feed, maxRowsPerTrigger="2")
    found = batches(mine)
    assert len(found) == 3
    for start, end in found:
        # Another process, with other limits and lanes, and with more in the stream, reads the same.
        assert rows(reader(feed, lanes="7"), start, end) == rows(mine, start, end)
        assert len(rows(mine, start, end)) == end["step"]["changes"]["shop.public.orders:public.orders"]
    whole = [row["after"] for start, end in found for row in rows(mine, start, end)]
    assert whole == [f'{{"id":{number},"note":"a"}}' for number in range(5)]


def test_positions_are_those_of_the_source_and_order_is_that_of_the_stream(feed):
    feed.transaction(1000, [ORDERS, insert(100, ["1", "a"]), update(100, ["1", "b"])], xid=42, micros=7)
    mine = reader(feed)
    [(start, end)] = batches(mine)
    found = rows(mine, start, end)
    assert [(row["commit_lsn"], row["xid"], row["op"]) for row in found] == [(1000, 42, "c"), (1000, 42, "u")]
    assert found[0]["ordinal"] < found[1]["ordinal"]


def test_a_query_that_starts_with_the_latest_leaves_out_what_is_there(feed):
    feed.transaction(1000, [ORDERS, insert(100, ["1", "a"])])
    mine = reader(feed, start="latest")
    start = mine.initialOffset()
    feed.transaction(1100, [insert(100, ["2", "b"])])
    [(first, last)] = batches(mine, start)
    assert [row["after"] for row in rows(mine, first, last)] == ['{"id":2,"note":"b"}']


def test_a_message_of_many_packets_is_one_row(feed):
    feed.chunk = 64
    feed.transaction(1000, [ORDERS, insert(100, ["1", "x" * 1000]), insert(100, ["2", "y"])])
    mine = reader(feed)
    [(start, end)] = batches(mine)
    assert [len(row["after"]) for row in rows(mine, start, end)] == [1018, 19]


def test_a_publisher_that_died_in_mid_message_and_sent_it_again_gives_one_row(feed):
    feed.chunk = 64
    store, given = feed.store, []
    feed.store = lambda *one: given.append(one)
    feed.transaction(1000, [ORDERS, insert(100, ["1", "x" * 300])])
    feed.store = store
    for one in given:
        if ".wal." in one[0] or "_wal_" in one[0]:
            begun = packets(one[1][0].as_py(), 64)[:2]
            feed.store_packets(one[0], pa.array(begun, pa.binary()), ["begun-0", "begun-1"])
        feed.store(*one)
    mine = reader(feed, maxRowsPerTrigger="1")
    found = [row for start, end in batches(mine) for row in rows(reader(feed), start, end)]
    assert [row["after"] for row in found] == [f'{{"id":1,"note":"{"x" * 300}"}}']


def test_a_trimmed_stream_names_what_is_wanted_and_what_is_there(feed):
    feed.transaction(1000, [ORDERS, *(insert(100, [str(number), "a"]) for number in range(10))])
    start = reader(feed).initialOffset()
    with Link(feed.access) as link:
        call(link, f"STREAM.PURGE.{feed.names.stream(Kind.WAL)}", {"keep": 3})
    mine = reader(feed)
    with pytest.raises(PositionError, match="wanted from 1 on, and the oldest that it has is 8"):
        mine.latestOffset(start, mine.getDefaultReadLimit())


def test_a_stream_that_was_made_anew_is_noticed(feed):
    feed.transaction(1000, [ORDERS, insert(100, ["1", "a"])])
    mine = reader(feed)
    start = mine.initialOffset()
    with Link(feed.access) as link:
        call(link, f"STREAM.DELETE.{feed.names.stream(Kind.WAL)}", {})
    again = Feed(feed.access, feed.names)
    with pytest.raises(PositionError, match="deleted and made anew"):
        reader(feed).latestOffset(start, mine.getDefaultReadLimit())
    again.close()


def test_a_stream_that_is_not_there_is_named(feed):
    with pytest.raises(PositionError, match=r"there is no stream 'NOWHERE"):
        reader(feed, namespace="NOWHERE").initialOffset()


def test_a_schema_that_nobody_knows_stops_the_query_and_loses_nothing(feed):
    store = feed.store
    feed.store = lambda subject, *given: None if "schema" in subject else store(subject, *given)
    feed.transaction(1000, [ORDERS, insert(100, ["1", "a"])])
    mine = reader(feed, timeoutSeconds="1")
    start = mine.initialOffset()
    end = mine.latestOffset(start, mine.getDefaultReadLimit())
    with pytest.raises(BrokerUnavailable, match="start the producer of database 'shop'"):
        mine.partitions(start, end)


def test_a_message_that_cannot_be_read_is_named(feed):
    feed.transaction(1000, [ORDERS, insert(100, ["1", "a"])])
    subject = feed.names.subject(Kind.WAL, "public", "orders")
    feed.store(subject, pa.array([b"nonsense"], pa.binary()), ["nonsense"])
    mine = reader(feed)
    start = mine.initialOffset()
    end = mine.latestOffset(start, mine.getDefaultReadLimit())
    with pytest.raises(MessageError, match=r"message 2 of stream .* of table shop\.public\.orders, cannot be read"):
        rows(mine, start, end)


def test_messages_of_others_are_passed_over(feed, monkeypatch):
    """So that a stream which only others write to may forget what is old."""
    monkeypatch.setattr("headwater.spark.sources.creek.log._PASS_SECONDS", 0.0)
    feed.transaction(1000, [ORDERS, insert(100, ["1", "a"])])
    mine = reader(feed)
    [(_, end)] = batches(mine)[:1]
    feed.transaction(1100, [ITEMS, *(insert(101, [str(number), "b"]) for number in range(4))])
    moved = mine.latestOffset(end, mine.getDefaultReadLimit())
    assert moved["sequence"] == 5
    assert rows(mine, end, moved) == []


@pytest.mark.timeout(300)
def test_spark_reads_a_stream_to_its_end_and_goes_on_from_its_checkpoint(feed, spark: SparkSession, tmp_path):
    register(spark)
    feed.transaction(1000, [ORDERS, *(insert(100, [str(number), "a"]) for number in range(50))])

    def run() -> None:
        stream = spark.readStream.format("headwater.creek").options(**options(feed, maxRowsPerTrigger="20")).load()
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()

    run()
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.count() == 50
    assert found.schema.fieldNames()[:3] == ["commit_lsn", "ordinal", "xid"]
    feed.transaction(1100, [insert(100, ["99", "later"])])
    run()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 51
