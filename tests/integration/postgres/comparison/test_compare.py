"""Tables of two real databases compared: what counts as a difference, whatever the types, keys, settings and versions."""

import time
from contextlib import closing
from urllib.parse import urlsplit

import psycopg
import pytest

from headwater.postgres.comparison import Counts, Finding, Incomparable, Side, compare_table
from headwater.postgres.comparison.side import both
from headwater.postgres.connect import connect_sync
from tests.support.servers.embedded import fresh_database
from tests.support.sinks.table_comparison import compare, compare_twice, paired


@pytest.fixture
def target(postgres18):
    with fresh_database(postgres18.url) as url:
        yield url


def run(url, *statements):
    """Run some SQL, each statement by itself."""
    with closing(connect_sync(url)) as connection:
        for statement in statements:
            connection.execute(statement)


def rows(*values):
    """An insert of rows with the ids 1, 2 and so on, and these expressions."""
    listed = ", ".join(f"({id}, {value})" for id, value in enumerate(values, start=1))
    return f"insert into t values {listed}"  # noqa: S608 - what the test itself has written


def on_both(database, target, *statements):
    for url in (database, target):
        run(url, *statements)


def test_equal_tables_have_no_difference(database, target):
    on_both(
        database,
        target,
        "create table t (id int primary key, v text)",
        "insert into t select g, 'v' || g from generate_series(1, 1000) g",
    )

    compared, findings = compare(database, target, "t")

    assert (compared.source_rows, compared.target_rows, compared.counts, findings) == (1000, 1000, Counts(), [])


def test_missing_extra_and_different_rows_are_listed_by_key_with_the_columns_that_differ(database, target):
    on_both(
        database,
        target,
        "create table t (id int primary key, v text, w int, x int)",
        "insert into t select g, 'v' || g, g, g from generate_series(1, 200) g",
    )
    run(
        target,
        "delete from t where id = 7",
        "insert into t values (1001, '', 0, 0)",
        "update t set v = 'other', x = null where id = 9",
    )

    compared, findings = compare(database, target, "t")

    assert (compared.source_rows, compared.target_rows) == (200, 200)
    assert compared.counts == Counts(missing=1, extra=1, different=1)
    assert findings == [
        Finding("missing", {"id": "7"}),
        Finding("extra", {"id": "1001"}),
        Finding("different", {"id": "9"}, ("v", "x")),
    ]


def test_so_many_differences_of_each_kind_are_listed_and_all_are_counted(database, target):
    on_both(database, target, "create table t (id int primary key, v int)")
    run(database, "insert into t select g, g from generate_series(1, 30) g")
    run(target, "insert into t select g, 0 from generate_series(21, 40) g")

    compared, findings = compare(database, target, "t", limit=3)

    assert compared.counts == Counts(missing=20, extra=10, different=10)
    assert [finding.kind for finding in findings] == ["missing"] * 3 + ["extra"] * 3 + ["different"] * 3


DIFFERENT = {
    "null is not an empty text": ("text", "null", "''"),
    "null is not the word": ("text", "null", "'NULL'"),
    "an empty array is not null": ("int[]", "'{}'", "null"),
    "a null in an array is not the word": ("text[]", "array[null]::text[]", "array['NULL']"),
    "a composite of nulls is not null": ("pair", "row(null, null)::pair", "null"),
    "a composite with an empty text": ("pair", "row(1, '')::pair", "row(1, null)::pair"),
    "negative zero": ("float8", "'-0'", "0"),
    "NaN": ("float8", "'NaN'", "null"),
    "the last digit of a float": ("float8", "0.1::float8 + 0.2::float8", "0.3"),
    "the scale of a numeric": ("numeric", "1.0", "1.00"),
    "blanks in json": ("json", """'{"a": 1}'""", """'{"a":1}'"""),
    "a label of an enum": ("mood", "'good'", "'bad'"),
    "a blank at the end": ("text", "'a'", "'a '"),
    "a byte": ("bytea", r"'\x00'", r"'\x01'"),
    "a microsecond": ("timestamptz", "'2026-01-01 00:00:00.000001+00'", "'2026-01-01 00:00:00+00'"),
    "the length of an interval": ("interval", "'1 month'", "'30 days'"),
    "truth": ("bool", "true", "false"),
    "a netmask": ("inet", "'10.0.0.1/24'", "'10.0.0.1/32'"),
}
OWN_TYPES = (
    "create type pair as (a int, b text)",
    "create type mood as enum ('good', 'bad')",
)


@pytest.mark.parametrize(("type_name", "ours", "theirs"), DIFFERENT.values(), ids=list(DIFFERENT))
def test_what_is_not_the_same_is_a_difference(database, target, type_name, ours, theirs):
    on_both(database, target, *OWN_TYPES, f"create table t (id int primary key, v {type_name})")
    run(database, rows(ours, ours, theirs))
    run(target, rows(ours, theirs, theirs))

    compared, findings = compare(database, target, "t")

    assert compared.counts == Counts(different=1)
    assert findings == [Finding("different", {"id": "2"}, ("v",))]


EVERYTHING = """create table t (
    id int primary key, a text, b char(10), c numeric, d float8, e float4, f timestamptz, g timestamp, h date, i interval,
    j bytea, k money, l bool, m jsonb, n text[], o uuid, p inet, q mood, r pair, s int4range, t "char", u regclass
)"""
ROW = """insert into t values (
    1, 'ä€', 'abc', 1.50, 0.1, 0.1, '2026-03-29 01:30:00+00', '2026-03-29 01:30', '2026-03-29', '1 year 2 days 03:04:05.6',
    '\\xdeadbeef', 1234.5, true, '{"b": 1, "a": null}', '{a,NULL,"b c"}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
    '10.0.0.1', 'bad', (1, null), '[1,5)', 'x', 't'
)"""


def test_values_are_equal_whatever_the_settings_order_of_columns_and_version_on_either_side(database, any_database):
    """The target has its columns in another order, other defaults, and is of each version in turn."""
    run(database, *OWN_TYPES, EVERYTHING, ROW)
    run(any_database, *OWN_TYPES, "create table t (dropped int, u regclass)", "alter table t drop column dropped")
    names = "a text, b char(10), c numeric, d float8, e float4, f timestamptz, g timestamp, h date, i interval, j bytea"
    more = 'k money, l bool, m jsonb, n text[], o uuid, p inet, q mood, r pair, s int4range, t "char", id int primary key'
    for column in f"{more}, {names}".split(", "):
        run(any_database, f"alter table t add column {column}")
    listed = "id, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u"
    run(any_database, ROW.replace("into t", f"into t ({listed})"))
    for setting, value in {
        "datestyle": "'SQL, DMY'",
        "intervalstyle": "'sql_standard'",
        "timezone": "'Asia/Kolkata'",
        "extra_float_digits": "-10",
        "bytea_output": "'escape'",
        "search_path": "'pg_catalog'",
    }.items():
        run(any_database, f'alter database "{urlsplit(any_database).path[1:]}" set {setting} = {value}')

    compared, findings = compare(database, any_database, "t")

    assert (compared.source_rows, compared.counts, findings) == (1, Counts(), [])


def test_a_text_in_another_encoding_is_the_same_text(database, postgres18):
    name = f"latin_{urlsplit(database).path[-20:]}"
    run(postgres18.url, f"create database {name} template template0 encoding 'LATIN1' locale 'C'")
    latin = urlsplit(postgres18.url)._replace(path=f"/{name}").geturl()
    try:
        on_both(database, latin, "create table t (id text primary key, v text)")
        on_both(database, latin, "insert into t values ('ä', 'ö'), ('z', 'y'), ('é', 'è')")
        run(latin, "update t set v = 'ü' where id = 'é'", "insert into t values ('ÿ', '')")

        compared, findings = compare(database, latin, "t")
    finally:
        run(postgres18.url, f"drop database {name} with (force)")

    assert compared.counts == Counts(extra=1, different=1)
    assert findings == [Finding("extra", {"id": "ÿ"}), Finding("different", {"id": "é"}, ("v",))]


@pytest.mark.parametrize("mine", ["bool", "char(5)", "inet", "mood", "int"])
def test_a_column_that_is_text_in_the_target_holds_what_the_source_sends(database, target, mine):
    sent = {"bool": "t", "char(5)": "ab   ", "inet": "10.0.0.1", "mood": "good", "int": "7"}[mine]
    run(database, *OWN_TYPES, f"create table t (id int primary key, v {mine})", rows(f"'{sent}'"))
    run(target, "create table t (id int primary key, v text)", rows(f"'{sent}'"))

    assert compare(database, target, "t")[0].counts == Counts()


def test_texts_that_a_collation_takes_for_equal_are_different(postgres15):
    """The server of the wheel knows no such collations."""
    with fresh_database(postgres15.url) as source, fresh_database(postgres15.url) as target:
        on_both(
            source,
            target,
            "create collation caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
            "create domain folded as text collate caseless",
            "create table t (id text collate caseless primary key, v text collate caseless, w folded)",
            "insert into t values ('a', 'b', 'c'), ('b', 'b', 'b'), ('c', 'c', 'c')",
        )
        run(target, "update t set v = 'B' where id = 'b'", "update t set w = 'C' where id = 'c'")

        _, findings = compare(source, target, "t")

    assert findings == [Finding("different", {"id": "b"}, ("v",)), Finding("different", {"id": "c"}, ("w",))]


def test_values_exchanged_between_rows_or_columns_are_differences(database, target):
    on_both(database, target, "create table t (id int primary key, a text, b text)")
    run(database, "insert into t values (1, 'x', 'y'), (2, 'y', 'x')")
    run(target, "insert into t values (1, 'y', 'x'), (2, 'x', 'y')")

    assert compare(database, target, "t")[0].counts == Counts(different=2)


def test_a_key_of_several_columns_names_a_row(database, target):
    on_both(
        database,
        target,
        'create table "Order Items" ("Order" int, item text, "a ""b"" %s" int, primary key (item, "Order"))',
        """insert into "Order Items" select g, 'it,em' || h, 1 from generate_series(1, 20) g, generate_series(1, 5) h""",
    )
    run(target, """update "Order Items" set "a ""b"" %s" = 2 where "Order" = 3 and item = 'it,em4'""")

    _, findings = compare(database, target, "Order Items")

    assert findings == [Finding("different", {"item": "it,em4", "Order": "3"}, ('a "b" %s',))]


def test_columns_may_have_the_names_that_the_statements_use(database, target):
    on_both(
        database,
        target,
        'create table wanted (key text, hash int, bucket int, k0 int, hashed int, "row" int, primary key (key, k0))',
        "insert into wanted select 'a' || g, g, g, g, g, g from generate_series(1, 50) g",
    )
    run(target, "update wanted set hash = 0 where k0 = 7")

    _, findings = compare(database, target, "wanted")

    assert findings == [Finding("different", {"key": "a7", "k0": "7"}, ("hash",))]


def test_rows_without_a_key_are_compared_as_often_as_they_are_there(database, target):
    on_both(database, target, "create table t (a int, b text)")
    run(database, "insert into t values (1, 'x'), (1, 'x'), (1, 'x'), (2, null), (2, null), (3, 'same')")
    run(target, "insert into t values (3, 'same'), (1, 'x'), (2, null), (2, null), (2, ''), (4, 'new')")

    compared, findings = compare(database, target, "t")

    assert compared.counts == Counts(missing=2, extra=2)
    assert [(finding.kind, finding.key["row"]) for finding in findings if finding.kind == "missing"] == [
        ("missing", "(1,x)")
    ]
    assert {finding.key["row"] for finding in findings if finding.kind == "extra"} == {'(2,"")', "(4,new)"}


def test_a_row_that_is_twice_in_a_target_without_the_key_is_extra(database, target):
    run(database, "create table t (id int primary key, v int)", "insert into t values (1, 1), (2, 2)")
    run(target, "create table t (id int, v int)", "insert into t values (1, 1), (2, 2), (2, 2), (null, 3)")

    compared, findings = compare(database, target, "t")

    assert compared.counts == Counts(extra=2)
    assert findings == [Finding("extra", {"id": "2"}), Finding("extra", {"id": None})]


def test_generated_columns_are_left_out_and_columns_of_one_side_are_named(database, target):
    run(
        database,
        "create table t (id int primary key, a int, twice int generated always as (a * 2) stored, gone int)",
        "insert into t values (1, 1)",
    )
    run(
        target,
        "create table t (loaded_at timestamptz default now(), twice int default 5, a int, id int primary key)",
        "insert into t (id, a) values (1, 1)",
    )

    with paired(database, target, "t") as (sides, pair):
        compared = compare_table(sides, pair)

    layout = pair.layout
    assert (layout.columns, layout.key) == (("id", "a"), ("id",))
    assert (layout.lacking, layout.surplus, layout.generated) == (("gone",), ("loaded_at",), ("twice",))
    assert compared.counts == Counts()


def test_a_partitioned_table_is_compared_with_a_plain_one_and_children_by_inheritance_are_not_its_rows(database, target):
    run(
        database,
        "create table t (id int primary key, v int) partition by range (id)",
        "create table t_low partition of t for values from (0) to (50)",
        "create table t_high partition of t for values from (50) to (1000)",
        "insert into t select g, g from generate_series(1, 99) g",
    )
    run(
        target,
        "create table t (id int primary key, v int)",
        "create table child () inherits (t)",
        "insert into t select g, g from generate_series(1, 99) g",
        "insert into child values (500, 500)",
    )

    compared, _ = compare(database, target, "t")

    assert (compared.source_rows, compared.target_rows, compared.counts) == (99, 99, Counts())


def test_all_of_a_table_in_which_everything_differs_is_counted(database, target):
    on_both(database, target, "create table t (id text primary key, v int)")
    run(database, "insert into t select chr(200 + g % 500) || g, g from generate_series(1, 25000) g")
    run(target, "insert into t select chr(200 + g % 500) || g, -g from generate_series(101, 25100) g")

    compared, findings = compare(database, target, "t")

    assert compared.counts == Counts(missing=100, extra=100, different=24900)
    assert len(findings) == 60


def test_a_table_that_cannot_be_read_leaves_the_snapshots_to_the_others(database, target, postgres18):
    role = f"reader_{urlsplit(target).path[-20:]}"
    on_both(database, target, "create table t (id int primary key)", "create table u (id int primary key)")
    run(target, f"create role {role} login password 'x'", f"grant select on u to {role}")
    as_role = urlsplit(target)._replace(netloc=f"{role}:x@{urlsplit(target).hostname}:{urlsplit(target).port}").geturl()
    try:
        with paired(database, as_role, "t") as (sides, pair):
            with pytest.raises(Incomparable, match=r"the target refused to read it: permission denied.*; grant this role"):
                compare_table(sides, pair)
            assert sides[1].connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
            assert sides[0].connection.execute("select 1").fetchone() == (1,)
    finally:
        run(target, f"drop owned by {role}", f"drop role {role}")


def test_rows_that_a_policy_hides_are_an_error_and_no_difference(database, target):
    role = f"reader_{urlsplit(target).path[-20:]}"
    on_both(database, target, "create table t (id int primary key)", "insert into t values (1)")
    run(
        target,
        f"create role {role} login password 'x'",
        f"grant select on t to {role}",
        "alter table t enable row level security",
        "create policy none on t using (false)",
    )
    as_role = urlsplit(target)._replace(netloc=f"{role}:x@{urlsplit(target).hostname}:{urlsplit(target).port}").geturl()
    try:
        with pytest.raises(Incomparable, match="bypassrls"):
            compare(database, as_role, "t")
    finally:
        run(target, f"drop owned by {role}", f"drop role {role}")


@pytest.mark.parametrize("late", [0, 0.5])
def test_when_one_side_fails_the_other_is_not_waited_for_whether_it_has_begun_or_not(database, target, late):
    def read(side):
        if side.name == "target":
            raise Incomparable("the target has failed")
        time.sleep(late)
        side.connection.execute("select pg_sleep(3600)")

    with closing(connect_sync(database)) as source, closing(connect_sync(target)) as other:
        with pytest.raises(Incomparable, match="the target has failed"):
            both((Side("source", database, source), Side("target", target, other)), read)


def test_each_side_is_read_as_it_was_when_its_snapshot_was_taken(database, target):
    on_both(database, target, "create table t (id int primary key)", "insert into t values (1)")

    with paired(database, target, "t") as (sides, pair):
        run(target, "insert into t values (2)")
        run(database, "delete from t")
        compared = compare_table(sides, pair)

    assert (compared.source_rows, compared.target_rows, compared.counts) == (1, 1, Counts())


def test_the_scan_of_a_large_table_is_parallel(database, target):
    on_both(
        database,
        target,
        "create table t (id bigint primary key, v text)",
        "insert into t select g, repeat(md5(g::text), 3) from generate_series(1, 100000) g",
        "analyze t",
    )

    with paired(database, target, "t") as (sides, pair):
        statement = pair.source.digest_rows()
        text = statement.query.as_string(sides[0].connection)
        plan = "\n".join(line for (line,) in sides[0].connection.execute(f"explain {text}"))
        buckets = sides[0].digest(pair.source)

    assert "Partial HashAggregate" in plan
    assert "Workers Planned" in plan
    assert sum(rows for rows, _ in buckets.values()) == 100_000


def test_a_key_that_the_target_gets_meanwhile_is_no_difference(database, target):
    on_both(database, target, "create table t (id int primary key, v int)", "insert into t values (1, 1), (2, 2)")
    run(database, "update t set v = 10 where id = 1", "insert into t values (3, 3)")

    def deliver():
        run(target, "update t set v = 10 where id = 1", "insert into t values (3, 3)")

    compared = compare_twice(database, target, "t", deliver, lambda: True)

    assert (compared.counts, compared.changed, compared.unsettled) == (Counts(), 2, 0)


def test_a_key_that_stays_different_once_the_target_has_caught_up_is_a_difference(database, target):
    on_both(database, target, "create table t (id int primary key, v int)", "insert into t values (1, 1), (2, 2)")
    run(database, "update t set v = 10")
    looks = []

    def settle():
        looks.append(1)
        run(target, "update t set v = 10 where id = 1")
        return True

    compared = compare_twice(database, target, "t", lambda: None, settle)

    assert (compared.counts, compared.changed, len(looks)) == (Counts(different=1), 1, 1)
    assert [one.key for one in compared.differences] == [("2",)]


def test_a_key_that_changes_whenever_it_is_looked_at_is_no_difference_but_said(database, target):
    on_both(database, target, "create table t (id int primary key, v int)", "insert into t values (1, 1)")
    run(database, "update t set v = v + 10")

    def settle():
        run(database, "update t set v = v + 10")
        return True

    compared = compare_twice(database, target, "t", lambda: None, settle)

    assert (compared.counts, compared.changed, compared.unsettled) == (Counts(), 0, 1)


def test_a_target_that_does_not_catch_up_differs_where_the_source_stood_still(database, target):
    on_both(database, target, "create table t (id int primary key, v int)", "insert into t values (1, 1), (2, 2)")
    run(database, "update t set v = v + 10")

    def settle():
        run(database, "update t set v = v + 10 where id = 2")
        return False

    compared = compare_twice(database, target, "t", lambda: None, settle)

    assert (compared.counts, compared.unsettled) == (Counts(different=1), 1)


def test_differences_beyond_those_that_are_kept_are_counted_though_not_looked_at_again(database, target, monkeypatch):
    monkeypatch.setattr("headwater.postgres.comparison.compare.KEPT_DIFFERENCES", 10)
    on_both(database, target, "create table t (id int primary key)")
    run(database, "insert into t select generate_series(1, 50)")

    def deliver():
        run(target, "insert into t select generate_series(1, 50)")

    compared = compare_twice(database, target, "t", deliver, lambda: True)

    assert (compared.counts, compared.uncertain, compared.changed) == (Counts(missing=40), Counts(missing=40), 10)


def test_rows_without_a_key_are_looked_at_again_too(database, target):
    on_both(database, target, "create table t (v int)", "insert into t values (1), (1)")
    run(database, "insert into t values (1), (5)")

    compared = compare_twice(database, target, "t", lambda: run(target, "insert into t values (1)"), lambda: True)

    assert (compared.counts, compared.changed) == (Counts(missing=1), 1)
