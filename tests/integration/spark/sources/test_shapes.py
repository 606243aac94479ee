"""Changes of real tables in each shape: every type, columns that come and go, types of the user's own."""

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import DecodeError, SettingsError, SourceError
from headwater.postgres.connect import Connection, connect_sync
from headwater.spark.sources import register
from headwater.spark.sources.changes import ChangesReader
from tests.support.capture.change_streams import frame_in, new_reader, next_range, ranges, reading


def _prepare(url: str, *statements: str) -> Connection:
    connection = connect_sync(url)
    for statement in (*statements, "create publication pub for all tables"):
        connection.execute(statement.encode())
    connection.execute("select pg_create_logical_replication_slot('hw', 'pgoutput')")
    return connection


def _options(url: str, **more: object) -> dict[str, object]:
    return {"url": url, "slot": "hw", "publication": "pub", **more}


def _read(reader: ChangesReader, changes: int, start: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """So many rows as tasks give them, in commit order."""
    partitions = [partition for found in ranges(reader, changes, start) for partition in found.partitions]
    tables = [pa.Table.from_batches(reader.read(partition)) for partition in partitions]
    rows = [row for table in tables for row in table.to_pylist()]
    return sorted(rows, key=lambda row: [value for name, value in row.items() if name.endswith(("commit_lsn", "ordinal"))])


def _row(**columns: object) -> dict[str, object]:
    return columns


def test_the_columns_of_a_table_are_typed(any_database):
    table = """create table t (id bigint primary key, a int, b text, c numeric(10, 2), d timestamptz, e timestamp, f date,
        g bool, h double precision, i bytea, j jsonb, k uuid, l int[], m time, n numeric, o smallint)"""
    row = """insert into t values (1, 2, 'é', 1.50, '2026-11-15 21:36:08.12+01', '2026-11-15 21:36:08', '2026-11-15', true,
        1.5, '\\x00ff', '{"a": 1}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{1,NULL}', '24:00',
        123456789012345678901234567890.5, -1)"""
    with _prepare(any_database, table) as connection:
        connection.execute(row.encode())
        connection.execute("insert into t values (2)")
        with reading(**_options(any_database, shape="table", table="t")) as reader:
            first, second = _read(reader, 2)
    assert first["d"].isoformat() == "2026-11-15T20:36:08.120000+00:00"
    assert {name: value for name, value in first.items() if name[0] != "_" and name != "d"} == _row(
        id=1,
        a=2,
        b="é",
        c=Decimal("1.50"),
        e=datetime(2026, 11, 15, 21, 36, 8),
        f=date(2026, 11, 15),
        g=True,
        h=1.5,
        i=b"\x00\xff",
        j='{"a": 1}',
        k="a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        l="[1,null]",
        m="24:00:00",
        n="123456789012345678901234567890.5",
        o=-1,
    )
    assert [value for name, value in second.items() if name[0] != "_"] == [2, *[None] * 15]
    assert (first["_op"], first["_unchanged"]) == ("c", [])


def test_a_column_that_is_added_while_a_stream_runs_is_left_out_until_it_starts_again(database):
    with _prepare(database, "create table t (id int primary key, v text)") as connection:
        with reading(**_options(database, shape="table", table="t")) as reader:
            start = reader.initialOffset()
            connection.execute("insert into t values (1, 'a')")
            connection.execute("alter table t add w text, drop column v")
            connection.execute("insert into t values (2, 'b')")
            rows = _read(reader, 2, start)
        assert [(row["id"], row["v"]) for row in rows] == [(1, "a"), (2, None)]
        with reading(**_options(database, shape="table", table="t")) as reader:
            rows = _read(reader, 2)
    assert [(row["id"], row["w"]) for row in rows] == [(1, None), (2, "b")]


def test_a_value_that_arrow_cannot_hold_is_named_with_the_remedy(database):
    with _prepare(database, "create table t (id int primary key, v numeric(8, 2))") as connection:
        connection.execute("insert into t values (1, 'NaN')")
        with reading(**_options(database, shape="table", table="t")) as reader:
            with pytest.raises(DecodeError, match=r"column 'v' of public\.t has a value .*'NaN'.*shape `envelope`"):
                _read(reader, 1)


@pytest.mark.parametrize("tables", ["t", "t,other"])
def test_shape_table_has_no_room_for_rows_of_another_table(database, tables):
    with _prepare(database, "create table t (id int primary key)", "create table other (id int primary key)") as connection:
        connection.execute("begin")
        connection.execute("insert into other values (7)")
        connection.execute("insert into t values (1)")
        connection.execute("commit")
        with reading(**_options(database, shape="table", table="t", tables=tables)) as reader:
            assert [row["id"] for row in _read(reader, 1)] == [1]


def test_a_publication_that_is_widened_while_a_stream_runs_brings_no_other_table_in(database):
    with connect_sync(database) as connection:
        connection.execute("create table t (id int primary key)")
        connection.execute("create table other (id int primary key)")
        with reading(url=database, slot="hw", shape="table", table="t") as reader:
            start = reader.initialOffset()
            connection.execute("insert into t values (1)")
            (first,) = ranges(reader, 1, start)
            connection.execute("alter publication hw add table other")
            connection.execute("begin")
            connection.execute("insert into other values (7)")
            connection.execute("insert into t values (2)")
            connection.execute("commit")
            assert [row["id"] for row in _read(reader, 1, first.end)] == [2]


def test_shape_table_needs_one_table_that_is_there(database):
    with _prepare(database, "create table a (id int primary key)", "create table b (_op int primary key)"):
        with pytest.raises(SettingsError, match=r"'\*' stands for 2; name one"):
            new_reader(**_options(database, shape="table", table="*"))
        with pytest.raises(SettingsError, match="column '_op' of b has the name of one of ours"):
            new_reader(**_options(database, shape="table", table="b"))


def test_an_update_that_leaves_a_large_value_alone_names_it_in_every_shape(any_database):
    with _prepare(any_database, "create table t (id int primary key, v text, big text)") as connection:
        connection.execute("alter table t alter big set storage external")
        connection.execute("insert into t values (1, 'a', repeat(md5('x'), 400))")
        connection.execute("update t set v = 'b'")
        with reading(**_options(any_database)) as reader:
            _, update = _read(reader, 2)
        with reading(**_options(any_database, shape="table", table="t")) as reader:
            _, typed = _read(reader, 2)
    assert json.loads(update["after"]) == {"id": 1, "v": "b"}
    assert update["unchanged"] == ["big"]
    assert (typed["v"], typed["big"], typed["_unchanged"]) == ("b", None, ["big"])


def test_types_of_the_user_s_own_are_known(any_database):
    types = [
        "create type mood as enum ('sad', 'it''s \"ok\"')",
        "create domain amount as numeric(10, 2) check (value >= 0)",
        "create type pair as (n int, moods mood[])",
        "create domain stamps as timestamptz[]",
    ]
    table = "create table t (id int primary key, m mood, a amount, p pair, ps pair[], s stamps)"
    with _prepare(any_database, *types, table) as connection:
        connection.execute(
            """insert into t values (1, 'it''s "ok"', 1.5, row(7, '{sad,NULL}'), array[row(8, null)::pair],
               '{2026-11-15 21:36:08+00}')"""
        )
        with reading(**_options(any_database)) as reader:
            (row,) = _read(reader, 1)
        with reading(**_options(any_database, shape="table", table="t")) as reader:
            (typed,) = _read(reader, 1)
    after = json.loads(row["after"])
    assert after == {
        "id": 1,
        "m": 'it\'s "ok"',
        "a": "1.50",
        "p": {"n": 7, "moods": ["sad", None]},
        "ps": [{"n": 8, "moods": None}],
        "s": ["2026-11-15T21:36:08+00:00"],
    }
    assert (typed["a"], json.loads(typed["p"])) == (Decimal("1.50"), after["p"])


def test_partitions_come_as_themselves_and_are_wanted_with_their_parent(any_database):
    tables = [
        "create table t (id int primary key, v text) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10)",
        "create table t2 (v text, id int not null)",
        "alter table t attach partition t2 for values from (10) to (20)",
        "create table other (id int primary key)",
    ]
    with _prepare(any_database, *tables) as connection:
        connection.execute("insert into t values (1, 'a'), (11, 'b')")
        connection.execute("insert into other values (5)")
        connection.execute("update t set id = 12 where id = 1")
        with reading(**_options(any_database, tables="t")) as reader:
            rows = _read(reader, 4)
        with reading(**_options(any_database, shape="table", table="t")) as reader:
            typed = _read(reader, 4)
    assert [(row["table"], row["op"]) for row in rows] == [("t1", "c"), ("t2", "c"), ("t1", "d"), ("t2", "c")]
    assert [(row["id"], row["v"]) for row in typed] == [(1, "a"), (11, "b"), (1, None), (12, "a")]


def test_a_partitioned_table_that_is_published_as_its_root_comes_under_its_name(database):
    tables = [
        "create table t (id int primary key, v text) partition by range (id)",
        "create table t1 partition of t for values from (0) to (10)",
    ]
    with _prepare(database, *tables) as connection:
        connection.execute("alter publication pub set (publish_via_partition_root = true)")
        connection.execute("insert into t values (1, 'a')")
        with reading(**_options(database, shape="table", table="t")) as reader:
            assert [row["id"] for row in _read(reader, 1)] == [1]


def test_a_frame_of_shape_wire_holds_what_the_server_sent(database):
    with _prepare(database, "create type mood as enum ('sad')", "create table t (id int primary key, m mood)") as connection:
        connection.execute("insert into t values (1, 'sad'), (2, null)")
        with reading(**_options(database, shape="wire")) as reader:
            found = next_range(reader, reader.initialOffset())
            (row,) = (row for partition in found.partitions for batch in reader.read(partition) for row in batch.to_pylist())
    frame = frame_in(row["frame"])
    assert (row["lane"], row["changes"]) == (frame.lane, 2)
    assert [type_.name for type_ in frame.own_types] == ["mood"]
    assert (frame.lineage.slot, frame.lineage.system_identifier) == ("hw", found.end["system"])


def test_masked_and_hashed_columns_do_not_leave_as_they_are(database):
    with _prepare(database, "create table t (id int primary key, phone text, mail text)") as connection:
        connection.execute("alter table t replica identity full")
        connection.execute("insert into t values (1, '+49 1', 'a@b')")
        connection.execute("update t set phone = null")
        connection.execute("delete from t")
        options = _options(database, mask=json.dumps({"public.t.phone": "***"}), hash="public.t.mail", salt="s")
        with reading(**options) as reader:
            rows = _read(reader, 3)
    text = json.dumps(rows, default=str)
    assert "+49" not in text
    assert "a@b" not in text
    assert [json.loads(row["after"] or row["before"])["phone"] for row in rows] == ["***", None, None]


PARTITIONED = (
    "create table t (id int primary key, mail text) partition by range (id)",
    "create table t1 partition of t for values from (0) to (10)",
)


def test_a_masked_column_does_not_leave_under_the_name_of_a_partition(database):
    with _prepare(database, *PARTITIONED) as connection:
        connection.execute("insert into t values (1, 'a@b')")
        for protection in ({"mask": json.dumps({"public.t.mail": "***"})}, {"hash": "public.t.mail", "salt": "s"}):
            with reading(**_options(database, **protection)) as reader:
                with pytest.raises(
                    SourceError, match=r"come under the name of its partition public\.t1.*via_partition_root"
                ):
                    _read(reader, 1)


@pytest.mark.parametrize(
    ("there", "insert", "back"),
    [
        ("alter table t rename to u", "insert into u values (2, 'c@d')", "alter table u rename to t"),
        (
            "alter table t rename column mail to post",
            "insert into t values (2, 'c@d')",
            "alter table t rename column post to mail",
        ),
    ],
)
def test_a_masked_column_does_not_leave_under_another_name_that_it_has_for_a_while(database, there, insert, back):
    with _prepare(database, "create table t (id int primary key, mail text)") as connection:
        with reading(**_options(database, mask=json.dumps({"public.t.mail": "***"}))) as reader:
            start = reader.initialOffset()
            connection.execute("insert into t values (1, 'a@b')")
            (first,) = ranges(reader, 1, start)
            connection.execute("begin")
            for statement in (there, insert, back, "insert into t values (3, 'e@f')"):
                connection.execute(statement.encode())
            connection.execute("commit")
            with pytest.raises(SettingsError, match=r"nothing .*was delivered"):
                next_range(reader, first.end)


def test_a_masked_column_that_its_table_does_not_have_is_refused(database):
    with _prepare(database, "create table t (id int primary key, mail text)") as connection:
        connection.execute("insert into t values (1, 'a@b')")
        with reading(**_options(database, mask=json.dumps({"public.t.email": "***"}))) as reader:
            with pytest.raises(SettingsError, match=r"public\.t\.email is to be masked or hashed, and the table does not"):
                _read(reader, 1)


@pytest.mark.parametrize("change", ["alter table t detach partition t1", "drop table t1", "alter table t1 rename to old"])
def test_changes_of_a_partition_arrive_whatever_became_of_it_meanwhile(database, change):
    with connect_sync(database) as connection:
        for statement in (*PARTITIONED, "create publication pub for table t"):
            connection.execute(statement.encode())
        connection.execute("select pg_create_logical_replication_slot('hw', 'pgoutput')")
        connection.execute("insert into t values (1, 'a')")
        connection.execute(change.encode())
        with reading(**_options(database, tables="t")) as reader:
            (row,) = _read(reader, 1)
    assert (row["table"], row["after"]) == ("t1", '{"id":1,"mail":"a"}')


def test_a_partitioned_table_comes_under_the_name_that_was_asked_for(database):
    """Sinks and masks know no other."""
    with connect_sync(database) as connection:
        for statement in PARTITIONED:
            connection.execute(statement.encode())
        with reading(url=database, slot="hw", tables="t", mask=json.dumps({"public.t.mail": "***"})) as reader:
            start = reader.initialOffset()
            connection.execute("insert into t values (1, 'a@b')")
            connection.execute("update t set mail = 'c@d'")
            rows = _read(reader, 2, start)
    assert {row["table"] for row in rows} == {"t"}
    assert [json.loads(row["after"])["mail"] for row in rows] == ["***", "***"]


@pytest.mark.timeout(300)
def test_spark_takes_the_rows_of_every_shape_as_they_are(spark, database, tmp_path):
    register(spark)
    table = """create table t (id bigint primary key, a smallint, b text, c numeric(10, 2), d timestamptz, e timestamp,
        f date, g bool, h real, i bytea, x xid8, y oid)"""
    row = """insert into t values (1, 2, 'é', 1.50, '2026-11-15 21:36:08.12+00', '2026-11-15 21:36:08', '2026-11-15', true,
        1.5, '\\x00ff', '18446744073709551615', 4294967295)"""
    with _prepare(
        database, table, "create type mood as enum ('sad')", "create table u (id int primary key, m mood)"
    ) as connection:
        connection.execute(row.encode())
        connection.execute("insert into u values (1, 'sad')")
        connection.execute("truncate t, u")
        found: dict[str, list[Any]] = {}
        for shape, more in {"envelope": {}, "table": {"table": "t"}, "wire": {}}.items():
            connection.execute("select pg_copy_logical_replication_slot('hw', %s)", [f"hw_{shape}"])
            options = {**_options(database, shape=shape, **more), "slot": f"hw_{shape}"}
            stream = spark.readStream.format("headwater.changes").options(**options).load()

            def deliver(batch: Any, number: int, shape: str = shape) -> None:
                found.setdefault(shape, []).extend(batch.collect())

            writer = stream.writeStream.foreachBatch(deliver).option("checkpointLocation", str(tmp_path / shape))
            assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert sorted((row["table"], row["op"]) for row in found["envelope"]) == [("t", "c"), ("t", "t"), ("u", "c"), ("u", "t")]
    first, second = sorted(found["table"], key=lambda row: (row["_commit_lsn"], row["_ordinal"]))
    assert (first["id"], first["a"], first["c"], first["x"]) == (1, 2, Decimal("1.50"), Decimal("18446744073709551615"))
    assert (first["f"], first["i"], first["y"]) == (date(2026, 11, 15), b"\x00\xff", 4294967295)
    assert (second["_op"], second["id"]) == ("t", None)
    assert sum(row["changes"] for row in found["wire"]) == 4
