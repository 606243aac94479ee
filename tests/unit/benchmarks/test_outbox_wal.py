"""The benchmark of the outbox: what it compares, from when to when, and a reference that is what it says it is."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from benchmarks.outbox_wal.__main__ import PARTS
from benchmarks.outbox_wal.broker import stored_by
from benchmarks.outbox_wal.latency import latencies
from benchmarks.outbox_wal.recovery import pipeline_file
from benchmarks.outbox_wal.reference_relay import Decoder, Recovered, column_names
from benchmarks.outbox_wal.relay import settings_of
from benchmarks.outbox_wal.stream import SHAPES, Turn
from benchmarks.outbox_wal.testbed import Stored, Target, shares
from benchmarks.pipeline_process import SOURCE_VARIABLE, TARGET_VARIABLE
from headwater.brokers.nats import NatsAccess
from headwater.brokers.registry import NatsMessages
from headwater.cli.pipeline_file.load import load
from headwater.spark.settings import BrokerSinkSettings, OutboxSettings
from tests.support.capture.pgoutput_writer import insert, relation

TEXT, UUID, TIMESTAMPTZ, JSON = 25, 2950, 1184, 114
TARGET = Target(NatsAccess(url="nats://127.0.0.1:4222"), "TURN0007")


def test_each_group_of_bars_has_a_part():
    assert [*PARTS] == ["stream", "broker", "recovery"]
    assert SHAPES == {1: 5, 10: 2, 100: 1}


@pytest.mark.parametrize(("events", "per_transaction"), [(10_000, 1), (10_000, 100), (1_005, 10), (3, 1), (5, 100)])
def test_the_writers_write_every_event_once_and_break_no_transaction(events, per_transaction):
    parts = shares(events, per_transaction, 4)

    assert [number for first, last in parts for number in range(first, last + 1)] == [*range(1, events + 1)]
    assert all((last - first + 1) % per_transaction == 0 for first, last in parts[:-1])
    assert all(after == last + 1 for (_, last), (after, _) in pairwise(parts))


def test_a_rate_is_from_the_first_message_that_was_stored_to_the_last():
    assert Stored(101, 10.0, 12.0).per_second == 50.0


def test_the_reference_is_compared_by_its_rate_though_it_stops_earlier():
    turn = Turn(ours=Stored(1001, 10.0, 11.0), read_at=9.0, status_packets=1, theirs=Stored(11, 0.0, 0.1), their_packets=33)

    assert turn.ratio == pytest.approx(10.0)
    assert turn.per_second_with_read == pytest.approx(500.5)
    assert turn.ratio_with_read == pytest.approx(5.005)


def test_what_all_rows_would_take_the_reference_has_the_time_to_the_first_of_them_once():
    assert Recovered(events=1000, seconds_to_first=2.0, seconds_of_sending=1.0).seconds_of(10_000) == 12.0


def test_a_queue_is_timed_from_when_something_is_in_it_until_all_is():
    sightings = [(1.0, 0), (2.0, 0), (3.0, 40), (4.0, 100), (5.0, 100)]

    assert stored_by(sightings, 100) == Stored(100, 3.0, 4.0)


@pytest.mark.parametrize("found", [99, 101])
def test_a_queue_that_has_fewer_messages_or_more_is_no_measurement(found):
    with pytest.raises(AssertionError, match=f"{found} of 100"):
        stored_by([(1.0, 0), (2.0, found)], 100)


def test_an_event_is_late_by_the_time_from_its_commit_to_the_stream():
    assert latencies([1.0, 2.0], [1.5, 2.25]) == [0.5, 0.25]


def test_events_that_never_came_are_no_latencies():
    with pytest.raises(ValueError, match="shorter"):
        latencies([1.0, 2.0], [1.5])


def test_the_reference_decodes_rows_by_the_columns_that_the_server_describes():
    columns = [("payload", JSON, -1, False), ("id", UUID, -1, True), ("type", TEXT, -1, False)]
    described = relation(7, "outbox_message", [*columns, ("created_at", TIMESTAMPTZ, -1, True)])
    row = insert(7, ['{"a": "ü"}', "0198", "OrderPlaced", "2026-11-16 11:00:00.25+00"])
    decoder = Decoder()

    decoder.describe(memoryview(described))
    event = decoder.insert(memoryview(row))

    assert [*column_names(described)] == ["payload", "id", "type", "created_at"]
    assert (event.id, event.type, event.payload) == ("0198", "OrderPlaced", '{"a": "ü"}'.encode())
    assert event.created_at == datetime(2026, 11, 16, 11, tzinfo=UTC) + timedelta(milliseconds=250)


def test_the_relay_is_told_no_more_than_whence_and_where_to():
    settings = settings_of("postgresql://h/d", TARGET.messages, "checkpoint")

    assert settings.source == OutboxSettings(url="postgresql://h/d", slot="relay", publication="relay")
    assert (settings.transform, dict(settings.spark)) == (None, {})


def test_the_recovered_pipeline_is_told_what_it_needs_and_its_file_holds_no_password(tmp_path):
    file = tmp_path / "headwater.toml"
    file.write_text(pipeline_file(TARGET))
    urls = {SOURCE_VARIABLE: "postgresql://me:hunter2@h/d", TARGET_VARIABLE: "nats://me:hunter2@h:4222"}

    settings = load(file, urls)
    (sink,) = settings.sinks

    assert settings.source == OutboxSettings(url=urls[SOURCE_VARIABLE], slot="recovery", publication="recovery")
    assert isinstance(sink, BrokerSinkSettings) and isinstance(sink.access, NatsMessages)
    assert (sink.access.settings.subject, sink.access.access.url) == ("turn0007.{topic}", urls[TARGET_VARIABLE])
    assert "hunter2" not in file.read_text()
