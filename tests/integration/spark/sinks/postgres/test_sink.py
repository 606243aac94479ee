"""The sink as a pipeline uses it, through Spark: frames and envelopes in, rows equal to the source's out."""

import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from pyspark.sql.functions import expr

from headwater.errors import SettingsError, SinkError, SinkFenced, SinkUnavailable
from headwater.postgres.connect import connect_sync
from headwater.spark.letters import find_letter
from headwater.spark.shape import ENVELOPE, WIRE, Shape
from headwater.spark.sinks import Written
from tests.conformance.sink_frames import Delivery, capture, read
from tests.integration.spark.sinks.postgres.test_apply import EVERY_KIND, SETUP
from tests.support.servers.tcp_proxy import Proxy
from tests.support.sinks.postgres_sink_run import after, build, by_key, execute, letters, rows

pytestmark = pytest.mark.timeout(300)

TABLES = ("item", "pair")


@pytest.fixture
def delivery(database) -> Delivery:
    return capture(database, EVERY_KIND, tables=TABLES, setup=SETUP)


@pytest.fixture
def sink(database, target, delivery):
    with closing(build(database, target, TABLES)) as sink:
        sink.open()
        yield sink


@pytest.mark.parametrize("lanes", [1, 4])
def test_lanes_by_table_are_written_by_tasks_of_their_own(database, target, delivery, sink, spark, lanes):
    written = sink.write(delivery.split(lanes).wire(spark), Shape.WIRE, delivery.span)
    again = sink.write(delivery.wire(spark), Shape.WIRE, delivery.span)

    assert written == Written(changes=len(delivery.changes))
    assert again == Written(skipped=len(delivery.changes))
    for table in TABLES:
        assert rows(target, table) == rows(database, table)


def test_key_lanes_that_stand_in_each_other_s_way_are_done_again_in_order(database, target, spark):
    table = "create table spot (id int primary key, place int unique)"
    trade = """do $$ begin
        for i in 1..7 by 2 loop
            update spot set place = -1 where id = i;
            update spot set place = i where id = i + 1;
            update spot set place = i + 1 where id = i;
        end loop;
    end $$"""
    execute(target, table)
    statements = ("insert into spot select i, i from generate_series(1, 8) as i", trade)
    delivery = capture(database, statements, tables=("spot",), setup=(table,))
    first = delivery.between(delivery.span.start, after(delivery, 8))
    second = delivery.between(after(delivery, 8), delivery.span.end)
    lanes = Delivery(tuple(frame for lane in by_key(second, 4) for frame in lane.frames), second.span)
    with closing(build(database, target, ["spot"])) as sink:
        sink.open()
        sink.write(first.wire(spark), Shape.WIRE, first.span)
        written = sink.write(lanes.wire(spark), Shape.WIRE, lanes.span)

    assert written.changes + written.skipped == 12
    assert rows(target, "spot") == rows(database, "spot")
    assert letters(database) == []


def test_lanes_that_are_done_again_do_not_load_the_pieces_beside_them_twice(database, target, spark):
    table = "create table spot (id int primary key, place int unique)"
    execute(target, table)
    execute(database, "create table whole (id int)", "insert into whole select generate_series(1, 40)")
    trade = """do $$ begin
        update spot set place = -1 where id = 1;
        update spot set place = 1 where id = 2;
        update spot set place = 2 where id = 1;
    end $$"""
    delivery = capture(database, ("insert into spot values (1, 1), (2, 2)", trade), tables=("spot",), setup=(table,))
    reading = read(database, "first", ["whole"])
    first = delivery.between(delivery.span.start, after(delivery, 2))
    second = delivery.between(after(delivery, 2), delivery.span.end)
    frames = tuple(frame for lane in by_key(second, 4) for frame in lane.frames)
    mixed = Delivery(frames, replace(second.span, loading=reading.whole.span.loading), reading.chunks)
    with closing(build(database, target, ["spot"])) as sink:
        sink.open()
        sink.write(first.wire(spark), Shape.WIRE, first.span)
        assert {frame.lane for frame in frames} != {frames[0].lane}
        written = sink.write(mixed.wire(spark), Shape.WIRE, mixed.span)
        sink.write(reading.end.wire(spark), Shape.WIRE, reading.end.span)

    assert written.changes + written.skipped == 43
    assert rows(target, "spot") == rows(database, "spot")
    assert rows(target, "whole") == rows(database, "whole")


def test_rows_go_into_the_tables_that_a_transform_has_made_up(database, target, spark):
    execute(database, "create table item (id int primary key, v text)")
    execute(database, "insert into item select i, 'v' || i from generate_series(1, 30) as i")
    execute(target, "create table evens (id int primary key, v text)", "insert into evens values (2, 'old'), (99, 'ghost')")
    reading = read(database, "first", ["item"])
    is_even = "cast(get_json_object(after, '$.id') as int) % 2 = 0"
    with closing(build(database, target, ["item"])) as sink:
        sink.open()
        changes = reading.whole.envelopes(spark).withColumn("table", expr(f"if({is_even}, 'evens', table)"))
        assert sink.write(changes, Shape.ENVELOPE, reading.whole.span) == Written(changes=30)
        assert rows(target, "evens") == ["(2,old)", "(99,ghost)"]
        sink.write(reading.end.envelopes(spark), Shape.ENVELOPE, reading.end.span)

    found = rows(database, "item")
    assert rows(target, "evens") == [row for row in found if int(row[1:].split(",")[0]) % 2 == 0]
    assert rows(target, "item") == [row for row in found if int(row[1:].split(",")[0]) % 2 == 1]


def test_rows_that_a_transform_has_spoiled_are_letters(database, target, spark):
    execute(database, "create table item (id int primary key, v text)")
    execute(database, "insert into item select i, 'v' || i from generate_series(1, 30) as i")
    reading = read(database, "first", ["item"])
    spoil = expr(
        "case get_json_object(after, '$.id') when '7' then 'no json' when '8' then '{\"id\": \"x\"}' else after end"
    )
    with closing(build(database, target, ["item"])) as sink:
        sink.open()
        changes = reading.whole.envelopes(spark).withColumn("after", spoil)
        assert sink.write(changes, Shape.ENVELOPE, reading.whole.span) == Written(changes=28, letters=2)
        sink.write(reading.end.envelopes(spark), Shape.ENVELOPE, reading.end.span)

    assert len(rows(target, "item")) == 28
    assert {(letter.op, str(letter.state)) for letter in letters(database)} == {("r", "open")}


def test_changes_that_went_through_a_transform_make_the_same(database, target, delivery, sink, spark):
    bounds = (delivery.span.start, after(delivery, 21), delivery.span.end)
    for start, end in pairwise(bounds):
        part = delivery.between(start, end)
        assert sink.write(part.envelopes(spark), Shape.ENVELOPE, part.span) == Written(changes=len(part.changes))
    assert sink.write(delivery.envelopes(spark), Shape.ENVELOPE, delivery.span) == Written(skipped=len(delivery.changes))

    for table in TABLES:
        assert rows(target, table) == rows(database, table)


def test_all_forms_of_json_become_the_values_that_they_were(database, target, spark):
    setup = (
        "create type mood as enum ('sad', 'so so')",
        "create type spot as (x float8, label text)",
        "create domain positive as int check (value > 0)",
        """create table item (
            id bigint primary key, a numeric, b float8, c bool, d bytea, e date, f timestamp, g timestamptz, h interval,
            i jsonb, j json, k text[], l int[], m int4range, n uuid, o mood, p spot, q spot[], r positive, s jsonb[],
            t char(4), u int2vector, v mood[], w numeric[], x text)""",
    )
    statements = (
        """insert into item values (9223372036854775807, 12345678901234567890.1234567890, 1e-300, true, '\\x00ff5c',
             '0044-03-15 BC', '0044-03-15 12:00:00.5 BC', '2024-02-29 12:00:00.123456+02', '1 mon -3 days 00:00:01.5',
             '{"a": [1.50, null, "\\u00e9"]}', '{"b" :  1}', array['x', null, 'y,"z', '', 'null', 'back\\slash'],
             '[0:1]={1,2}', '[1,5)', gen_random_uuid(), 'so so', row(1.5, 'a, "b"'), array[row(1, null)::spot, null], 7,
             array['{"c": 1}'::jsonb, 'null'], 'ab', '1 2', '{sad,"so so"}', '{1.50,NULL,NaN}', E'tab\\tnew\\nline')""",
        "insert into item (id, b, f, g, i, j, x) values (2, 'NaN', 'infinity', '-infinity', 'null', '\"text\"', '')",
        "insert into item (id) values (3)",
        "update item set a = 'Infinity', l = '{{1,2},{3,4}}', x = null where id = 2",
        "update item set id = 4, c = false where id = 3",
    )
    execute(target, *setup[:3])
    delivery = capture(database, statements, tables=("item",), setup=setup)
    with closing(build(database, target, ["item"])) as sink:
        sink.open()
        written = sink.write(delivery.envelopes(spark), Shape.ENVELOPE, delivery.span)

    assert letters(database) == []
    assert written == Written(changes=5)
    assert rows(target, "item") == rows(database, "item")


def test_a_table_without_a_key_comes_through_a_transform_too(database, target, spark):
    setup = ("create table loose (v text, n int)", "alter table loose replica identity full")
    statements = (
        "insert into loose select 'same', 1 from generate_series(1, 4)",
        "update loose set n = 2 where ctid in (select ctid from loose limit 1)",
        "delete from loose where ctid in (select ctid from loose where n = 1 limit 2)",
    )
    delivery = capture(database, statements, tables=("loose",), setup=setup)
    with closing(build(database, target, ["loose"])) as sink:
        sink.open()
        sink.write(delivery.envelopes(spark), Shape.ENVELOPE, delivery.span)

    assert rows(target, "loose") == rows(database, "loose") == ["(same,1)", "(same,2)"]


def test_what_a_transform_made_unreadable_is_a_letter(database, target, delivery, sink, spark):
    changes = delivery.envelopes(spark)
    broken = changes.selectExpr(
        *(
            "case when after like '%v7%' then 'not json' else after end as after" if name == "after" else f"`{name}`"
            for name in ENVELOPE.fieldNames()
        )
    )
    written = sink.write(broken, Shape.ENVELOPE, delivery.span)

    assert written == Written(changes=len(delivery.changes) - 1, letters=1)
    assert [(letter.table, letter.op) for letter in letters(database)] == [("item", "c")]
    assert rows(target, "item") == [row for row in rows(database, "item") if not row.startswith("(7,")]


def test_a_refused_row_after_a_transform_is_a_letter_that_can_be_replayed(database, target, delivery, sink, spark):
    execute(target, "alter table item add check (v <> 'changed')")
    written = sink.write(delivery.envelopes(spark), Shape.ENVELOPE, delivery.span)
    assert written == Written(changes=len(delivery.changes) - 1, letters=1)

    with closing(connect_sync(database)) as connection:
        letter = find_letter(connection, letters(database)[0].id)
    assert letter is not None
    with pytest.raises(SinkError, match="item_v_check"):
        sink.replay(letter.letter)
    execute(target, "alter table item drop constraint item_v_check")
    sink.replay(letter.letter)
    assert rows(target, "item") == rows(database, "item")


def test_an_empty_batch_is_nothing(sink, delivery, spark):
    assert sink.write(spark.createDataFrame([], WIRE), Shape.WIRE, delivery.span) == Written()
    assert sink.write(spark.createDataFrame([], ENVELOPE), Shape.ENVELOPE, delivery.span) == Written()


def test_errors_of_tasks_come_back_as_what_they_are(database, target, delivery, sink, spark):
    with closing(build(database, target, TABLES)) as later:
        later.open()
        with pytest.raises(SinkFenced):
            sink.write(delivery.wire(spark), Shape.WIRE, delivery.span)
        execute(target, "alter table item drop column v")
        with pytest.raises(SinkError, match="lacks column 'v'"):
            later.write(delivery.wire(spark), Shape.WIRE, delivery.span)
        with pytest.raises(SettingsError, match="not table"):
            later.write(delivery.wire(spark), Shape.TABLE, delivery.span)


def test_a_target_that_goes_away_is_waited_for_by_the_tasks(database, target, delivery, spark):
    with Proxy(target) as proxy, closing(build(database, proxy.url, TABLES, patience=timedelta(seconds=20))) as sink:
        sink.open()
        part = delivery.between(delivery.span.start, after(delivery, 10))
        assert sink.write(part.wire(spark), Shape.WIRE, part.span).changes == 10
        proxy.refuse = True
        proxy.cut()
        threading.Timer(1, lambda: setattr(proxy, "refuse", False)).start()
        written = sink.write(delivery.wire(spark), Shape.WIRE, delivery.span)

    assert written == Written(changes=len(delivery.changes) - 10, skipped=10)
    for table in TABLES:
        assert rows(target, table) == rows(database, table)


def test_a_target_that_stays_away_is_told_and_nothing_is_lost(database, target, delivery, spark):
    with Proxy(target) as proxy, closing(build(database, proxy.url, TABLES, patience=timedelta(seconds=1))) as sink:
        sink.open()
        proxy.refuse = True
        proxy.cut()
        with pytest.raises(SinkUnavailable) as caught:
            sink.write(delivery.wire(spark), Shape.WIRE, delivery.span)
        proxy.refuse = False
        assert sink.write(delivery.wire(spark), Shape.WIRE, delivery.span) == Written(changes=len(delivery.changes))

    assert caught.value.retryable
