"""Opening the sink: what is missing is made, and what does not fit is told before anything is written."""

from contextlib import closing
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from headwater.errors import SinkError, SinkUnavailable
from headwater.postgres.catalog import list_columns, list_tables, select_tables
from headwater.postgres.connect import connect_sync
from tests.support.servers.tcp_proxy import Proxy
from tests.support.sinks.postgres_sink_run import build, execute


def described(url: str, table: str) -> list[tuple[str, str, bool, int | None]]:
    with closing(connect_sync(url)) as connection:
        (found,) = select_tables(list_tables(connection), [table])
        columns = list_columns(connection, [found.oid])
        return [(column.name, column.type_name, column.not_null, column.key_position) for column in columns]


def names(url: str) -> set[str]:
    with closing(connect_sync(url)) as connection:
        return {str(table) for table in list_tables(connection)}


def open_sink(source: str, target: str, *tables: str) -> None:
    with closing(build(source, target, tables)) as sink:
        problems = sink.check()
        assert names(target) - {"public.item"} == set(), "a check makes nothing"
        sink.open()
        assert problems == []


def test_missing_schemas_and_tables_are_made_as_at_the_source(database, target):
    execute(
        database,
        'create schema "Sales Dept"',
        """create table "Sales Dept"."Order Items" (
             b text not null, a int, "when" timestamp(3) with time zone default now(), amount numeric(10,2), tags text[],
             total numeric generated always as (amount * 2) stored, primary key (b, a))""",
        "create table plain (v varchar(7))",
        "alter table plain replica identity full",
    )
    open_sink(database, target, '"Sales Dept"."Order Items"', "plain")

    made = described(target, '"Sales Dept"."Order Items"')
    assert made == [column for column in described(database, '"Sales Dept"."Order Items"') if column[0] != "total"]
    assert described(target, "plain") == described(database, "plain")


def test_tables_that_fit_are_left_as_they_are(database, target):
    execute(database, "create table item (id int primary key, v text)")
    execute(target, "create table item (extra int default 3, id bigint unique, v varchar(20))")
    before = described(target, "item")
    open_sink(database, target, "item")

    assert described(target, "item") == before


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("create table item (id int primary key)", "public.item of the target lacks column 'v'"),
        ("create table item (id int, v text)", r"no primary key or unique index on \(id\)"),
        (
            "create table item (id int primary key, v text generated always as ('x') stored)",
            "'v' of public.item is generated",
        ),
        ("create table item (id int primary key, v text, w int not null)", "column 'w' of public.item"),
        ("create table item (id int primary key deferrable, v text)", "no primary key or unique index"),
        ("create view item as select 1 as id, 'x' as v", "public.item of the target is no table"),
    ],
)
def test_a_table_of_another_shape_is_refused_with_the_remedy(database, target, definition, said):
    execute(database, "create table item (id int primary key, v text)")
    execute(target, definition)
    with closing(build(database, target, ["item"])) as sink:
        (problem,) = sink.check()
        with pytest.raises(SinkError, match=said) as caught:
            sink.open()

    assert problem in str(caught.value)
    assert ";" in problem


def test_a_table_without_a_key_needs_none_in_the_target(database, target):
    execute(database, "create table item (v text)")
    execute(target, "create table item (v text)")
    open_sink(database, target, "item")


def test_types_that_the_target_lacks_are_named(database, target):
    execute(database, "create type mood as enum ('sad')", "create table item (id int primary key, m mood)")
    with closing(build(database, target, ["item"])) as sink:
        with pytest.raises(SinkError, match=r"column 'm' of type public.mood.* create the type there"):
            sink.open()
    assert "public.item" not in names(target)

    execute(target, "create type mood as enum ('sad')")
    with closing(build(database, target, ["item"])) as sink:
        sink.open()
    assert described(target, "item") == described(database, "item")


def test_a_missing_table_is_refused_where_none_are_to_be_made(database, target):
    execute(database, "create table item (id int primary key)")
    with closing(build(database, target, ["item"], create_tables=False)) as sink:
        with pytest.raises(SinkError, match=r"public.item is missing in the target; create it, or set create_tables"):
            sink.open()


def test_a_role_without_the_right_to_make_tables_is_told_so(database, target):
    execute(database, "create schema shop", "create table shop.item (id int primary key)")
    execute(target, "create role poor login password 'poor'", "create schema headwater authorization poor")
    parts = urlsplit(target)
    url = parts._replace(netloc=f"poor:poor@{parts.hostname}:{parts.port}").geturl()
    try:
        with closing(build(database, url, ["shop.item"])) as sink:
            with pytest.raises(SinkError, match=r"role poor may not make table shop.item in the target"):
                sink.open()
    finally:
        execute(target, "drop owned by poor cascade", "drop role poor")


def test_a_role_that_may_not_write_to_a_table_is_told_so(database, target):
    execute(database, "create table item (id int primary key)")
    execute(target, "create table item (id int primary key)", "create role poor login password 'poor'")
    parts = urlsplit(target)
    url = parts._replace(netloc=f"poor:poor@{parts.hostname}:{parts.port}").geturl()
    try:
        execute(target, "grant select, insert, update on item to poor")
        with closing(build(database, url, ["item"])) as sink:
            assert "may not write to public.item" in sink.check()[0]
            execute(target, "grant delete on item to poor")
            assert sink.check() == []
    finally:
        execute(target, "drop owned by poor cascade", "drop role poor")


def test_a_target_that_is_away_is_waited_for_and_then_told(database, target):
    execute(database, "create table item (id int primary key)")
    with Proxy(target) as proxy:
        proxy.refuse = True
        with closing(build(database, proxy.url, ["item"], patience=timedelta(seconds=0.5))) as sink:
            with pytest.raises(SinkUnavailable) as caught:
                sink.open()
            assert len(sink.check()) == 1
            proxy.refuse = False
            sink.open()

    assert caught.value.retryable
    assert "public.item" in names(target)


def test_no_secret_is_in_what_is_said_or_shown(database, target):
    parts = urlsplit(target)
    url = parts._replace(netloc=f"postgres:s3cret@{parts.hostname}:1").geturl()
    execute(database, "create table item (id int primary key)")
    with closing(build(database, url, ["item"], patience=timedelta(0))) as sink:
        with pytest.raises(SinkError) as caught:
            sink.open()
        shown = f"{caught.value} {sink!r} {sink._address!r} {sink.check()}"

    assert "s3cret" not in shown


def test_the_source_itself_is_refused_as_a_target_before_anything_is_written(database):
    execute(database, "create table item (id int primary key, v text)")
    with closing(build(database, database, ["item"])) as sink:
        assert any("round in circles" in problem for problem in sink.check())
        with pytest.raises(SinkError, match="round in circles"):
            sink.open()
    assert not any("sink_position" in name for name in names(database))
