"""The Parquet sink on Spark and a real server: every type can be read back, nothing is lost when writing fails."""

import errno
import os
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.sql.functions import lit

from headwater.errors import SinkError, SinkUnavailable
from headwater.model.position import TimelineSwitch
from headwater.postgres.connect import connect_sync
from headwater.spark.letters import Letter, find_letter, letter_of_envelope, list_letters
from headwater.spark.settings import ParquetSinkSettings
from headwater.spark.shape import ENVELOPE, WIRE, Shape
from headwater.spark.sinks import Span, Written
from headwater.spark.sinks.build import build_sink
from headwater.spark.sinks.parquet import ParquetSink
from tests.conformance.sink_frames import Delivery, capture, read

pytestmark = pytest.mark.timeout(300)

TYPES = """create table every (
    id int primary key, small int2, large int8, flag bool, ratio float4, wide float8, price numeric(8,2), free numeric,
    day date, clock time, zoned timetz, moment timestamp, instant timestamptz, raw bytea, doc jsonb, ref uuid, list int[],
    number xid8, "date" text, span interval)"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "files"


@pytest.fixture
def build(path, database):
    """Sinks of the same directory, each that of a new run."""
    runs: list[ParquetSink] = []

    def sink(name="files", pipeline="shop"):
        for earlier in runs:
            earlier.close()
        runs.append(ParquetSink(ParquetSinkSettings(name=name, path=str(path)), pipeline=pipeline, state_url=database))
        runs[-1].open()
        return runs[-1]

    yield sink
    for earlier in runs:
        earlier.close()


def stored(url: str) -> list[Letter]:
    with closing(connect_sync(url)) as connection:
        found = (find_letter(connection, letter.id) for letter in list_letters(connection))
        return [one.letter for one in found if one is not None]


def test_spark_reads_all_columns_back_with_types_of_their_own(spark, database, build, path):
    row = (
        "(1, 2, 3, true, 1.5, 2.5, 12.34, 1e40, '2026-02-28', '24:00', '10:00+02', '4713-01-01 BC', "
        "'294246-12-31 23:59:59.999999+00', '\\x00ff', '{\"a\": null}', '00000000-0000-0000-0000-000000000001', "
        "'{1,null}', '18446744073709551615', 'my own', '1 day')"
    )
    delivery = capture(
        database,
        [f"insert into every values {row}", "delete from every", "truncate every"],  # noqa: S608 - a constant
        tables=("every",),
        setup=(TYPES,),
    )

    assert build().write(delivery.wire(spark), Shape.WIRE, delivery.span) == Written(changes=3)

    found = spark.read.parquet(str(path / "public.every"))
    types = dict(found.dtypes)
    assert types == {
        "id": "int",
        "small": "smallint",
        "large": "bigint",
        "flag": "boolean",
        "ratio": "float",
        "wide": "double",
        "price": "decimal(8,2)",
        "free": "string",
        "day": "date",
        "clock": "string",
        "zoned": "string",
        "moment": "timestamp_ntz",
        "instant": "timestamp",
        "raw": "binary",
        "doc": "string",
        "ref": "string",
        "list": "string",
        "number": "decimal(20,0)",
        "date_": "string",
        "span": "string",
        "_op": "string",
        "_commit_lsn": "bigint",
        "_ordinal": "int",
        "_xid": "bigint",
        "_committed_at": "timestamp",
        "_unchanged": "array<string>",
        "_old_key": "string",
        "date": "date",
    }
    in_order = found.orderBy("_commit_lsn", "_ordinal")
    first, deleted, truncated = in_order.drop("moment", "instant").collect()
    assert (first.small, first.large, first.flag, first.ratio, first.wide) == (2, 3, True, 1.5, 2.5)
    assert (first.price, first.free, first.number) == (Decimal("12.34"), "1" + "0" * 40, Decimal(2**64 - 1))
    assert (first.day, first.clock, first.raw, first.date_) == (date(2026, 2, 28), "24:00:00", b"\0\xff", "my own")
    assert (first.doc, first.list, first.date) == ('{"a": null}', "[1,null]", datetime.now(UTC).date())
    # Years that Python's datetime does not have; Spark has them.
    texts = in_order.selectExpr("cast(moment as string) as a", "cast(instant as string) as b").first()
    assert texts is not None
    assert (texts.a, texts.b) == ("-4712-01-01 00:00:00", "+294246-12-31 23:59:59.999999")
    assert (deleted.asDict()["_op"], deleted.id, deleted.price) == ("d", 1, None)
    assert (truncated.asDict()["_op"], truncated.id) == ("t", None)


@pytest.fixture
def delivery(database) -> Delivery:
    setup = ("create table item (id int primary key, amount numeric(8,2))",)
    statements = [
        "insert into item select i, i from generate_series(1, 9) as i",
        "insert into item values (10, 'NaN')",
        "update item set amount = amount + 1 where id < 3",
    ]
    return capture(database, statements, tables=("item",), setup=setup)


def ids(spark, path) -> list[int]:
    if not list(path.glob("public.item/*/[!._]*")):
        return []
    return sorted(row.id for row in spark.read.parquet(str(path / "public.item")).collect())


EXPECTED = sorted([*range(1, 10), 1, 2])


@pytest.mark.parametrize("number", range(9))
def test_an_error_at_any_step_of_the_driver_is_raised_and_the_next_attempt_completes(
    spark, build, path, delivery, number, monkeypatch
):
    """The disk is full at the n-th call that changes something; the same run tries again."""
    sink = build()
    calls: list[str] = []

    def failing(name):
        real = getattr(os, name)

        def call(*arguments, **options):
            calls.append(name)
            if len(calls) == number + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patched:
        for name in ("fsync", "rename", "replace"):
            patched.setattr(os, name, failing(name))
        try:
            sink.write(delivery.wire(spark), Shape.WIRE, delivery.span)
            assert len(calls) <= number, "the error was passed over"
        except SinkUnavailable as error:
            assert error.retryable
            assert "No space left on device; make room there" in str(error)

    sink.write(delivery.wire(spark), Shape.WIRE, delivery.span)

    assert ids(spark, path) == EXPECTED
    assert list(path.glob("*/*/.*")) == []


def test_a_value_that_parquet_cannot_hold_is_a_letter_that_can_be_replayed_once_it_can(
    spark, build, path, delivery, database
):
    sink = build()

    assert sink.write(delivery.wire(spark), Shape.WIRE, delivery.span) == Written(changes=11, letters=1)
    assert ids(spark, path) == EXPECTED

    (letter,) = stored(database)
    assert (letter.key, letter.table, letter.op) == ({"id": 10}, "item", "c")
    with pytest.raises(SinkError, match="still cannot be written: column 'amount' holds NaN"):
        sink.replay(letter)
    # As after an `alter table`, which makes room for it.
    free = replace(letter, relation=(letter.relation or b"").replace(((8 << 16) + 6).to_bytes(4), b"\xff\xff\xff\xff"))
    for _ in range(2):
        sink.replay(free)
    rows = spark.read.parquet(*map(str, path.glob("public.item/*/letter-*")))
    assert [(row.id, row.amount) for row in rows.collect()] == [(10, "NaN")]


def test_a_replay_goes_on_beside_a_run_and_stays_when_a_new_run_begins(spark, build, path, delivery, database):
    spoiled = delivery.spoiled(b"9.00", b"9.no")
    build().write(spoiled.wire(spark), Shape.WIRE, delivery.span)
    whole = next(letter for letter in stored(database) if letter.key == {"id": 9})
    good = replace(whole, message=(whole.message or b"").replace(b"9.no", b"9.00"))
    assert 9 not in ids(spark, path)

    beside = ParquetSink(ParquetSinkSettings(name="files", path=str(path)), pipeline="shop", state_url=database)
    beside.replay(good)
    beside.replay(good)
    build()

    assert ids(spark, path) == EXPECTED


def test_envelopes_are_replayed_among_the_changes(spark, build, path, delivery, database):
    sink = build()
    change = delivery.changes[0]
    sink.write(delivery.envelopes(spark), Shape.ENVELOPE, delivery.span)
    row = delivery.envelopes(spark).first().asDict()
    row["committed_at"] = change.committed_at
    sink.replay(letter_of_envelope(row, delivery.frames[0].lineage, "why", pipeline="shop", sink="files"))

    found = spark.read.parquet(str(path / "changes"))
    assert found.drop("date").schema == ENVELOPE
    assert found.where(f"commit_lsn = {change.position.commit_lsn:d} and ordinal = 0").count() == 2
    assert found.count() == 13


def test_another_pipeline_and_another_sink_are_refused(build, path):
    build()

    for names in ({"pipeline": "other"}, {"name": "twin"}):
        with pytest.raises(SinkError, match="belongs to sink 'files' of pipeline 'shop'"):
            build(**names)


def test_changes_of_another_server_are_refused_and_not_taken_for_old_ones(spark, build, path, delivery):
    build().write(delivery.wire(spark), Shape.WIRE, delivery.span)
    before = ids(spark, path)
    elsewhere = tuple(replace(f, lineage=replace(f.lineage, system_identifier="1")) for f in delivery.frames)

    with pytest.raises(SinkError, match="was written from another server"):
        build().write(Delivery(elsewhere, delivery.span).wire(spark), Shape.WIRE, delivery.span)

    assert ids(spark, path) == before


@pytest.mark.parametrize("timeline", [1, 2])
def test_envelopes_of_another_server_or_history_are_refused_and_not_taken_for_old_ones(
    spark, database, path, delivery, timeline
):
    """They do not say where they come from: the sink is told when it is made."""
    here = delivery.frames[0].lineage
    if timeline == 1:
        elsewhere = replace(here, system_identifier="1")
    else:
        elsewhere = replace(here, timeline=2, switches=(TimelineSwitch(1, delivery.changes[0].position.commit_lsn),))
    settings = ParquetSinkSettings(name="files", path=str(path))
    names = {"pipeline": "shop", "source_url": database, "state_url": database, "tables": ()}
    for lineage in (here, elsewhere):
        sink = build_sink(settings, **names, lineage=lineage)
        sink.open()
        with closing(sink):
            if lineage is here:
                assert sink.write(delivery.envelopes(spark), Shape.ENVELOPE, delivery.span).changes > 0
                continue
            with pytest.raises(SinkError, match="was written from another server, or from another history"):
                sink.write(delivery.envelopes(spark), Shape.ENVELOPE, delivery.span)


def test_nothing_is_written_for_a_batch_without_changes(spark, build, path, delivery):
    sink = build()
    before = sorted(path.rglob("*"))

    assert sink.write(spark.createDataFrame([], WIRE), Shape.WIRE, Span(delivery.span.start, delivery.span.end)) == Written()
    assert sorted(path.rglob("*")) == before


def test_letters_are_kept_before_their_range_counts(spark, build, path, delivery, database, monkeypatch):
    """A state database that is away keeps the range from being committed, so that its letters come again."""
    sink = build()

    def away(url, letters):
        raise SinkUnavailable("files", "the state database is away")

    with monkeypatch.context() as patched:
        patched.setattr("headwater.spark.sinks.parquet.sink.post_letters", away)
        with pytest.raises(SinkUnavailable):
            sink.write(delivery.wire(spark), Shape.WIRE, delivery.span)
    assert (ids(spark, path), stored(database)) == ([], [])

    assert sink.write(delivery.wire(spark), Shape.WIRE, delivery.span).letters == 1
    assert len(stored(database)) == 1


def test_changes_that_were_held_back_come_under_whatever_name_a_transform_gives_them(spark, database, build, path):
    with closing(connect_sync(database)) as connection:
        connection.execute("create table item (id int primary key)")
        connection.execute("insert into item values (1)")
    reading = read(database, "first", ["item"])
    changes = capture(database, ["insert into item values (2)", "insert into item values (3)"], tables=["item"])
    held = changes.between(reading.position, changes.changes[1].position)
    sink, end = build(), replace(reading.end.span, end=held.span.end)

    def renamed(delivery, span):
        return sink.write(delivery.envelopes(spark).withColumn("table", lit("thing")), Shape.ENVELOPE, span)

    renamed(reading.whole, reading.whole.span)
    # The stream has gone on meanwhile, with changes of others.
    other = changes.between(changes.changes[1].position, changes.span.end)
    renamed(other, replace(end, end=changes.span.end))

    assert renamed(held, held.span) == Written(changes=1)
    assert renamed(held, held.span) == Written(skipped=1)
    assert spark.read.parquet(str(path / "changes")).count() == 3
