"""The console sink: lines in commit order, as `headwater tail` writes them."""

import json
import os
import sys
from dataclasses import replace

import pytest
from pyspark.sql.functions import lit

from headwater.cli.lines import json_line
from headwater.errors import SinkError, TransformError
from headwater.spark.letters import letter_at, letter_of_envelope
from headwater.spark.settings import ConsoleSinkSettings
from headwater.spark.shape import Shape
from headwater.spark.sinks import Written
from headwater.spark.sinks.console import ConsoleSink
from tests.conformance.sink_frames import capture

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def delivery(database):
    setup = ("create table a (id int primary key, v text, j jsonb)", "create table b (id int primary key)")
    statements = [
        """insert into a values (1, E'two\\nlines "quoted" ü', '{"x": null}')""",
        "insert into b values (1), (2)",
        "update a set v = null",
        "update a set id = 5",
        "delete from b where id = 1",
        "truncate a, b",
    ]
    return capture(database, statements, tables=("a", "b"), setup=setup)


@pytest.fixture
def sink(database):
    sink = ConsoleSink(ConsoleSinkSettings(name="console"), pipeline="shop", state_url=database)
    sink.open()
    return sink


def test_lines_of_all_lanes_come_in_commit_order_and_look_like_those_of_tail(spark, sink, delivery, capfdbinary):
    lineage = delivery.frames[0].lineage

    written = sink.write(delivery.split(3).wire(spark), Shape.WIRE, delivery.span)

    assert written == Written(changes=8)
    assert capfdbinary.readouterr().out.decode().splitlines() == [json_line(c, lineage) for c in delivery.changes]


def test_envelopes_are_printed_with_the_same_fields(spark, database, delivery, capfdbinary):
    lineage = delivery.frames[0].lineage
    settings = ConsoleSinkSettings(name="console")
    sink = ConsoleSink(settings, pipeline="shop", state_url=database, lineage=lineage)

    sink.write(delivery.envelopes(spark), Shape.ENVELOPE, delivery.span)

    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines == [json_line(change, lineage) for change in delivery.changes]


def test_without_a_lineage_an_envelope_has_no_id_rather_than_a_wrong_one(spark, sink, delivery, capfdbinary):
    sink.write(delivery.envelopes(spark), Shape.ENVELOPE, delivery.span)

    assert {json.loads(line)["id"] for line in capfdbinary.readouterr().out.splitlines()} == {None}


def test_a_line_stays_a_line_whatever_a_transform_writes(spark, sink, delivery, capfdbinary):
    odd = delivery.envelopes(spark).limit(1).selectExpr(
        "commit_lsn", "ordinal", "xid", "committed_at", "op", "schema", "table",
        "'{oh' as key", "'{\n\"a\": 1}' as before", "after", "unchanged",
    )  # fmt: skip

    sink.write(odd, Shape.ENVELOPE, delivery.span)

    (line,) = capfdbinary.readouterr().out.decode().splitlines()
    assert (json.loads(line)["key"], json.loads(line)["before"]) == ("{oh", {"a": 1})


def test_an_envelope_that_lost_its_place_in_a_transform_is_refused(spark, sink, delivery, capfdbinary):
    odd = delivery.envelopes(spark).withColumn("commit_lsn", lit(None).cast("bigint"))

    with pytest.raises(TransformError, match="a change without commit_lsn came out of the transform"):
        sink.write(odd, Shape.ENVELOPE, delivery.span)
    assert capfdbinary.readouterr().out == b""


def test_a_closed_pipe_is_an_error_of_the_sink(spark, sink, delivery, monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", closed)
        with pytest.raises(SinkError, match="'console': whoever read the standard output has closed it"):
            sink.write(delivery.wire(spark), Shape.WIRE, delivery.span)
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)


def test_a_full_disk_is_an_error_of_the_sink(spark, sink, delivery, monkeypatch):
    with open("/dev/full", "wb", buffering=0) as full, monkeypatch.context() as patched:  # noqa: PTH123 - unbuffered

        class Output:
            buffer = full

            def flush(self) -> None:
                """Nothing is held back."""

        patched.setattr(sys, "stdout", Output())
        with pytest.raises(SinkError, match="cannot write to standard output: No space left"):
            sink.write(delivery.wire(spark), Shape.WIRE, delivery.span)


def test_a_letter_is_printed_when_it_is_replayed(spark, sink, delivery, capfdbinary):
    change, lineage = delivery.changes[0], delivery.frames[0].lineage
    letter = letter_at(delivery.frame_at(change.position), change.position, "why", pipeline="shop", sink="console")
    row = delivery.envelopes(spark).first().asDict()
    row["committed_at"] = change.committed_at

    sink.replay(letter)
    sink.replay(letter_of_envelope(row, lineage, "why", pipeline="shop", sink="console"))

    assert capfdbinary.readouterr().out.decode().splitlines() == [json_line(change, lineage)] * 2


def test_a_letter_that_still_does_not_decode_is_not_printed(sink, delivery, capfdbinary):
    place = delivery.changes[1].position
    letter = letter_at(delivery.frame_at(place), place, "why", pipeline="shop", sink="console")
    assert letter.message is not None
    broken = letter.message.replace(b"t\0\0\0\x011", b"t\0\0\0\x01?")

    with pytest.raises(SinkError, match="still cannot be printed"):
        sink.replay(replace(letter, message=broken))
    assert capfdbinary.readouterr().out == b""
