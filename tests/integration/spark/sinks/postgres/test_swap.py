"""Whole tables are swapped in exactly: what is equal stays, what differs is written, and what is gone goes, in one step."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from headwater.errors import SinkError
from headwater.model import Lineage
from headwater.postgres.connect import connect_sync
from headwater.spark.sinks import Written
from tests.conformance.sink_frames import Delivery, capture, read
from tests.support.sinks.postgres_sink_run import applying, execute, letters, rows

ITEM = "create table item (id int primary key, v text)"


def fetch(url: str, query: str) -> list[tuple[Any, ...]]:
    with closing(connect_sync(url)) as connection:
        return connection.execute(query.encode()).fetchall()


def found(url: str) -> list[tuple[str, object, str]]:
    return [(letter.op, letter.key, str(letter.state)) for letter in letters(url)]


@contextmanager
def plain_role(target: str) -> Iterator[str]:
    """The target for a role that may not switch foreign keys off."""
    execute(target, "create role swapper login password 'swapper'", "create schema headwater authorization swapper")
    try:
        execute(target, "grant all on schema public to swapper", "grant all on all tables in schema public to swapper")
        yield make_conninfo(target, user="swapper", password="swapper")
    finally:
        execute(target, "drop owned by swapper cascade", "drop role swapper")


def test_only_what_differs_is_written(database, target):
    execute(database, ITEM, "insert into item values (1, 'same'), (2, 'new'), (3, null), (5, 'added')")
    execute(target, ITEM, "insert into item values (1, 'same'), (2, 'old'), (3, 'was'), (4, 'ghost')")
    before: dict[int, str] = dict(fetch(target, "select id, xmin::text from item"))
    with applying(database, target, ["item"]) as run:
        run.take(read(database, "first", ["item"]))

    after: dict[int, str] = dict(fetch(target, "select id, xmin::text from item"))
    assert rows(target, "item") == rows(database, "item")
    assert {id for id in before if before[id] == after.get(id)} == {1}


def test_values_that_are_equal_and_not_the_same_are_written_and_types_without_equality_compared(database, target):
    """1.0 is 1.00, and a month is thirty days, to the operators of their types."""
    execute(database, "create type mood as enum ('sad', 'happy')", "create domain short as text check (length(value) < 9)")
    execute(target, "create type mood as enum ('sad', 'happy')", "create domain short as text check (length(value) < 9)")
    table = """create table item (id int primary key, n numeric, i interval, j json, p point, f float8, b boolean,
               a int[], m mood, s short, c char(5), e bytea, r jsonb)"""
    filled = """insert into item select id, n, i, '{"a":  1}', '(1,2)', '-0', true, '{1,NULL,3}', 'happy', 'abc',
                'ab', '\\x0001', '[1]' from (values ROWS) as own (id, n, i)"""
    month, days = "interval '1 month'", "interval '30 days'"
    execute(database, table, filled.replace("ROWS", f"(1, 1.00, {month}), (2, 2, {month}), (3, 3, {month})"))
    execute(target, table, filled.replace("ROWS", f"(1, 1.0, {month}), (2, 2, {month}), (3, 3, {days})"))
    for url in (database, target):
        execute(url, "insert into item (id) values (4)")
    before: dict[int, str] = dict(fetch(target, "select id, xmin::text from item"))
    with applying(database, target, ["item"]) as run:
        assert run.take(read(database, "first", ["item"])) == Written(changes=4)

    after: dict[int, str] = dict(fetch(target, "select id, xmin::text from item"))
    assert rows(target, "item") == rows(database, "item")
    assert {id for id in before if before[id] == after[id]} == {2, 4}


def test_a_table_without_a_key_is_emptied_and_filled(database, target):
    for url in (database, target):
        execute(url, "create table item (v text)")
    execute(database, "insert into item values ('a'), ('a'), ('b'), (null)")
    execute(target, "insert into item values ('a'), ('ghost')")
    with applying(database, target, ["item"]) as run:
        run.take(read(database, "first", ["item"]))

    assert rows(target, "item") == rows(database, "item")


def test_a_table_without_rows_empties_its_target(database, target):
    execute(database, ITEM)
    execute(target, ITEM, "insert into item values (1, 'ghost')")
    with applying(database, target, ["item"]) as run:
        run.take(read(database, "first", ["item"]))

    assert rows(target, "item") == []


def test_an_empty_table_that_nobody_refers_to_is_replaced_and_looks_as_before(database, target):
    execute(database, "create table item (id int primary key, v text not null)", "insert into item values (1, 'a')")
    look = """select con.conname::text, pg_get_constraintdef(con.oid) from pg_constraint as con
               where con.conrelid = 'item'::regclass order by 1"""
    with applying(database, target, ["item"]) as run:
        oid, before = fetch(target, "select 'item'::regclass::oid"), fetch(target, look)
        run.take(read(database, "first", ["item"]))

    assert fetch(target, "select 'item'::regclass::oid") != oid
    assert fetch(target, look) == before
    assert fetch(target, "select reloptions from pg_class where oid = 'item'::regclass") == [(None,)]
    assert rows(target, "item") == rows(database, "item")


@pytest.mark.parametrize(
    "use",
    [
        "create view seen as select * from item",
        "create index more on item (v)",
        "grant select on item to public",
        "comment on table item is 'mine'",
        "alter table item alter v set default 'x'",
        "alter table item add check (id > 0)",
        "alter table item set (fillfactor = 50)",
        "create table other (id int references item)",
        "create publication mine for table item",
        "create function f() returns setof item language sql as 'select * from public.item'",
        "alter table item enable row level security",
        "create statistics stat on id, v from item",
    ],
)
def test_an_empty_table_that_somebody_made_something_of_is_filled_where_it_is(database, target, use):
    execute(database, ITEM, "insert into item values (1, 'a')")
    execute(target, ITEM, use)
    oid = fetch(target, "select 'item'::regclass::oid")
    with applying(database, target, ["item"]) as run:
        run.take(read(database, "first", ["item"]))

    assert fetch(target, "select 'item'::regclass::oid") == oid
    assert rows(target, "item") == rows(database, "item")


@pytest.mark.parametrize("kept", ["", "insert into item values (7, 'old')"])
def test_a_row_that_a_constraint_refuses_is_a_letter_until_it_is_replayed_or_outdated(database, target, kept):
    execute(
        database,
        ITEM,
        "insert into item select i, case when i in (7, 250) then 'bad' else 'v' end from generate_series(1, 500) i",
    )
    execute(
        target, "create table item (id int primary key, v text constraint good check (v <> 'bad'))", *filter(None, [kept])
    )
    reading = read(database, "first", ["item"])
    with applying(database, target, ["item"]) as run:
        assert run.take(reading) == Written(changes=500, letters=2)
        assert run.complete(reading) == Written()
        assert found(database) == [("r", {"id": 7}, "open"), ("r", {"id": 250}, "open")]
        assert len(rows(target, "item")) == 499 if kept else 498

        changes = capture(database, ["update item set v = 'fine' where id = 250"], tables=["item"])
        run.write(replace(changes, span=replace(changes.span, start=reading.position)))
        assert found(database) == [("r", {"id": 7}, "open"), ("r", {"id": 250}, "superseded")]
        execute(target, "alter table item drop constraint good")
        run.replay_all()

    assert rows(target, "item") == rows(database, "item")


def test_rows_that_trade_places_under_a_second_key_are_written(database, target):
    for url, names in ((database, "bca"), (target, "abc")):
        execute(url, "create table item (id int primary key, v text unique)")
        for number, name in enumerate(names):
            execute(url, "insert into item values (ID, 'NAME')".replace("ID", str(number)).replace("NAME", name))
    with applying(database, target, ["item"]) as run:
        assert run.take(read(database, "first", ["item"])) == Written(changes=3)

    assert rows(target, "item") == rows(database, "item")


@pytest.mark.parametrize(("parent", "child"), [("a", "b"), ("b", "a")])
def test_tables_that_refer_to_each_other_are_swapped_in_an_order_that_foreign_keys_allow(database, target, parent, child):
    def made(line: str) -> str:
        return line.replace("PARENT", parent).replace("CHILD", child)

    for url, number in ((database, "3"), (target, "2")):
        execute(url, made("create table PARENT (id int primary key)"))
        execute(url, made("create table CHILD (id int primary key, p int references PARENT)"))
        execute(url, made("insert into PARENT values (1), (#)").replace("#", number))
        execute(url, made("insert into CHILD values (1, 1), (#, #)").replace("#", number))
    with plain_role(target) as url, applying(database, url, [parent, child]) as run:
        assert run.take(read(database, "first", [child, parent])) == Written(changes=4)
        assert (rows(target, "a"), rows(target, "b")) == (rows(database, "a"), rows(database, "b"))


def test_a_row_whose_parent_is_nowhere_is_a_letter(database, target):
    execute(database, "create table child (id int primary key, p int)", "insert into child values (10, 1), (20, 2)")
    execute(target, "create table parent (id int primary key)", "insert into parent values (1)")
    execute(target, "create table child (id int primary key, p int references parent)")
    with plain_role(target) as url, applying(database, url, ["child"]) as run:
        assert run.take(read(database, "first", ["child"])) == Written(changes=2, letters=1)
        assert (rows(target, "child"), found(database)) == (["(10,1)"], [("r", {"id": 20}, "open")])


def test_letters_from_before_are_superseded_and_those_of_a_dead_attempt_too(database, target):
    execute(target, "create table item (id int primary key, v varchar(3))")
    changes = capture(database, ["insert into item values (1, 'long'), (2, 'ok')"], tables=["item"], setup=[ITEM])
    dead, reading = read(database, "dead", ["item"]), read(database, "alive", ["item"])
    with applying(database, target, ["item"]) as run:
        run.write(changes)
        run.begin(dead)
        run.load(dead)
        assert found(database) == [("c", {"id": 1}, "open"), ("r", {"id": 1}, "open")]
        run.begin(reading)
        assert found(database) == [("c", {"id": 1}, "open"), ("r", {"id": 1}, "superseded")]
        run.load(reading)
        run.complete(reading)

    assert [letter.state for letter in letters(database) if "alive" in letter.event_id] == ["open"]
    assert {letter.state for letter in letters(database) if "alive" not in letter.event_id} == {"superseded"}


def test_a_table_of_another_server_is_taken_once_it_is_swapped_in_from_there(database, target):
    changes = capture(database, ["insert into item values (1, 'a')"], tables=["item"], setup=[ITEM])
    reading = read(database, "first", ["item"])
    other = Lineage("12345", 1, (), "shop", "hw")
    moved = Delivery(tuple(replace(frame, lineage=other) for frame in changes.frames), changes.span)
    there = replace(reading, chunks=tuple(replace(chunk, lineage=other) for chunk in reading.chunks))
    with applying(database, target, ["item"]) as run:
        run.write(changes)
        with pytest.raises(SinkError, match="another server"):
            run.write(moved)

        run.take(there)

        assert run.write(moved) == Written(skipped=1)
        with pytest.raises(SinkError, match="another server"):
            run.write(changes)
    query = "select lanes, lane, commit_lsn::text, system_identifier, attempt from headwater.sink_position"
    assert fetch(target, query) == [(1, 0, str(reading.position.commit_lsn), "12345", "first")]


def test_a_swap_that_fails_leaves_all_as_it_was_and_is_made_up_for(database, target):
    execute(database, ITEM, "insert into item values (1, 'a')")
    execute(target, ITEM, "insert into item values (2, 'ghost')")
    execute(
        target,
        "create function fail() returns trigger language plpgsql as 'begin raise exception using errcode = ''P0001''; end'",
        "create trigger fail before insert on item execute function fail()",
        "alter table item enable always trigger fail",
    )
    reading = read(database, "first", ["item"])
    with applying(database, target, ["item"]) as run:
        run.begin(reading)
        run.load(reading)
        with pytest.raises(SinkError, match="P0001"):
            run.complete(reading)
        assert rows(target, "item") == ["(2,ghost)"]
        execute(target, "drop trigger fail on item")

        run.complete(reading)

    assert rows(target, "item") == rows(database, "item")
