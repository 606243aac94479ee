"""The benchmark of the Creek wire: what it measures from where to where, and what its producer is told."""

import itertools
from unittest.mock import Mock

import pytest

from benchmarks.creek import testbed
from benchmarks.creek.__main__ import PARTS
from benchmarks.creek.latency import latencies
from benchmarks.creek.producer import producer_file
from benchmarks.creek.testbed import DATABASE, TABLE, Turn, encode_all, rate_of, schema_of
from benchmarks.creek.wal import id_of
from benchmarks.pipeline_process import SOURCE_VARIABLE, TARGET_VARIABLE
from benchmarks.report import Output
from headwater.cli.pipeline_file.load import load
from headwater.creek.decode import HEAD_BYTES, Decoder
from headwater.creek.names import Names
from headwater.model import Lsn
from headwater.postgres.replication.batch import Batch, lay_out, relations_in, tags_of
from headwater.spark.settings import ChangesSettings, NatsSinkSettings, SnapshotRule
from tests.support.capture.pgoutput_writer import begin, commit, insert, relation

INT8 = 20


def test_each_bar_of_the_wire_has_a_part():
    assert [*PARTS] == ["avro", "wal", "client", "source", "snapshot", "apply", "latency"]


def test_the_rate_is_that_of_the_median_turn_and_what_it_takes_with_the_start_is_a_figure():
    output, turns = Output(), [Turn(1.0, 2.0), Turn(4.0, 9.0), Turn(2.0, 5.0)]

    assert rate_of(turns, "source", 1000, output) == 500
    assert output.figures == {"source_count": 1000, "source_seconds": 2.0, "source_seconds_with_start": 5.0}


def test_turns_have_names_of_one_length_and_none_twice():
    nothing = Mock(spec=[])
    made = testbed.Testbed(nothing, nothing, itertools.count(1))

    names = [made.fresh_names().root for _ in range(12)]

    assert len(set(names)) == 12
    assert {len(name) for name in names} == {len(names[0])}


def test_a_row_is_late_by_the_time_from_its_commit_to_the_client():
    assert latencies([1.0, 1.25], 10, {9: 0.5, 10: 1.5, 11: 2.0}) == [0.5, 0.75]


def test_a_row_that_never_came_to_the_client_has_no_latency():
    with pytest.raises(KeyError):
        latencies([1.0, 1.25], 10, {10: 1.5})


def test_the_id_of_a_stored_message_is_found_among_its_headers():
    assert id_of(b"NATS/1.0\r\nNats-Msg-Id: 7.1.shop.slot.AB.0-seq-0\r\nOther: x\r\n\r\n") == b"7.1.shop.slot.AB.0-seq-0"


def test_the_producer_is_told_what_it_needs_and_its_file_holds_no_password(tmp_path):
    file = tmp_path / "headwater.toml"
    file.write_text(producer_file("TURN0001"))
    urls = {SOURCE_VARIABLE: "postgresql://me:hunter2@h/d", TARGET_VARIABLE: "nats://me:hunter2@h:4222"}

    settings = load(file, urls)
    (sink,) = settings.sinks

    assert (settings.source.tables, settings.source.publication) == ((TABLE,), "bench")
    # A table that is to be asked for must not be in the stream of changes as well.
    assert isinstance(settings.source, ChangesSettings) and settings.source.snapshot is SnapshotRule.NEVER
    assert isinstance(sink, NatsSinkSettings) and sink.answers
    assert (sink.namespace, sink.access.url) == ("TURN0001", urls[TARGET_VARIABLE])
    assert "hunter2" not in file.read_text()


def test_batches_are_encoded_as_one_stream():
    names = Names("TURN0001", DATABASE)

    encoded = [*encode_all([batch(0x100, first=1), batch(0x200, first=3)], names)]

    decoder = Decoder(encoded[0].schema.text)
    messages = [decoder.wal(payload.as_py()[HEAD_BYTES:]) for one in encoded for payload in one.payloads]
    assert [(message.after or {}).get("id") for message in messages] == [1, 2, 3, 4]
    assert [message.source.last_lsn for message in messages] == [Lsn(0), Lsn(0), Lsn(0x100), Lsn(0x100)]


def test_a_schema_has_the_same_id_however_often_it_is_published():
    names = Names("TURN0001", DATABASE)
    (first,), (second,) = ([*encode_all([batch(lsn, first=1)], names)] for lsn in (0x100, 0x200))

    ids = {schema_of(one, names).ids[0].as_py() for one in (first, second)}

    assert len(ids) == 1


def batch(commit_lsn: int, first: int) -> Batch:
    """A transaction of two rows."""
    table = relation(1, "orders", [("id", INT8, -1, True)])
    rows = [insert(1, [str(id)]) for id in (first, first + 1)]
    data, bounds = lay_out([begin(commit_lsn), table, *rows, commit(commit_lsn, commit_lsn + 8)])
    return Batch(data, bounds, relations_in(data, bounds, tags_of(data, bounds), 0), 2, Lsn(commit_lsn + 8))
