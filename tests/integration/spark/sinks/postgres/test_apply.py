"""Changes of a real server, applied to a real one: the target's rows are the source's."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from urllib.parse import urlsplit

import pytest

from headwater.errors import SinkError
from headwater.spark.settings import SchemaChanges
from headwater.spark.sinks import Written
from headwater.spark.sinks.postgres.lane import Contended
from tests.conformance.sink_frames import capture
from tests.support.sinks.postgres_sink_run import after, applying, by_key, execute, letters, rows

EVERY_KIND = (
    "insert into item select i, 'v' || i, repeat('x', 5000) from generate_series(1, 20) as i",
    "insert into pair values (1, 'x', 10), (1, 'y', 20), (2, 'x', null)",
    "update item set v = 'changed' where id = 1",
    "update item set big = null, v = '' where id = 2",
    "update item set id = 100 where id = 3",
    "delete from item where id = 4",
    "update pair set n = n + 1 where a = 1",
    "update pair set b = 'z' where a = 2",
    "delete from pair where (a, b) = (1, 'y')",
    "insert into item values (4, 'again', null)",
    "truncate pair",
    "insert into pair values (7, 'after', 1)",
)
SETUP = (
    "create table item (id int primary key, v text, big text)",
    "alter table item alter column big set storage external",
    "create table pair (a int, b text, n int, primary key (a, b))",
)


@contextmanager
def as_plain(target: str) -> Iterator[str]:
    """The target for a role that owns nothing there, and may not switch foreign keys off."""
    parts = urlsplit(target)
    execute(target, "create role plain login password 'plain'", "create schema headwater authorization plain")
    try:
        execute(target, "grant all on schema public to plain", "grant all on all tables in schema public to plain")
        yield parts._replace(netloc=f"plain:plain@{parts.hostname}:{parts.port}").geturl()
    finally:
        execute(target, "drop owned by plain cascade", "drop role plain")


def test_all_kinds_of_changes_make_the_target_equal_to_the_source(any_database, any_target):
    delivery = capture(any_database, EVERY_KIND, tables=("item", "pair"), setup=SETUP)
    with applying(any_database, any_target, ["item", "pair"]) as run:
        assert run.write(delivery) == Written(changes=len(delivery.changes))

    for table in ("item", "pair"):
        assert rows(any_target, table) == rows(any_database, table)


def test_one_change_after_the_other_makes_the_same(database, target):
    delivery = capture(database, EVERY_KIND, tables=("item", "pair"), setup=SETUP)
    bounds = [delivery.span.start, *(after(delivery, n) for n in range(1, len(delivery.changes))), delivery.span.end]
    with applying(database, target, ["item", "pair"]) as run:
        for start, end in pairwise(bounds):
            assert run.write(delivery.between(start, end)) == Written(changes=1)

    for table in ("item", "pair"):
        assert rows(target, table) == rows(database, table)


@pytest.mark.parametrize("seed", range(5))
def test_a_random_mix_cut_anywhere_and_delivered_again_makes_the_same(database, target, seed):
    chance = random.Random(seed)
    pick = "create function pick() returns int language sql return (1 + floor(random() * 30))::int"
    kinds = [
        "insert into item values (pick(), md5(random()::text), repeat('y', 4000)) on conflict do nothing",
        "update item set v = md5(random()::text) where id = (select pick())",
        "update item set v = null, big = repeat('z', 3000) where id % 7 = (select pick()) % 7",
        "delete from item where id = (select pick())",
        "update item set id = id + 100 where id = (select min(id) from item) and id < 100",
        "update item set id = id - 100 where id > 100 and id - 100 not in (select id from item)",
    ]
    statements = [chance.choice([*kinds * 10, "truncate item"]) for _ in range(80)]
    delivery = capture(database, statements, tables=("item",), setup=(*SETUP, pick, f"select setseed({chance.random()})"))
    count = len(delivery.changes)
    cuts = sorted(chance.sample(range(1, count), 4))
    bounds = [delivery.span.start, *(after(delivery, cut) for cut in cuts), delivery.span.end]
    with applying(database, target, ["item"]) as run:
        for number, end in enumerate(bounds[1:], 1):
            # From anywhere before: what is there already is left out.
            run.write(delivery.between(bounds[chance.randrange(number)], end))

    assert rows(target, "item") == rows(database, "item")
    assert letters(database) == []


def test_special_texts_arrive_as_they_are(database, target):
    setup = ("create table item (id int primary key, v text)",)
    statements = (
        r"""insert into item values (0, ''), (1, '\N'), (2, '\.'), (3, E'a\tb'), (4, E'a\nb\r\n'), (5, 'back\slash'),
            (6, 'ünïcödé 🚰'), (7, 'quo"te'), (8, ''''), (9, 'null'), (10, '{}'), (11, ' '), (12, null)""",
        r"update item set v = v || '\' where id < 5",
    )
    delivery = capture(database, statements, tables=("item",), setup=setup)
    with applying(database, target, ["item"]) as run:
        run.write(delivery.between(delivery.span.start, after(delivery, 13)))
        run.write(delivery)

    assert rows(target, "item") == rows(database, "item")


def test_columns_of_many_types_arrive_whole(database, target):
    setup = (
        """create table item (
            id uuid primary key, a smallint, b bigint, c numeric(20, 5), d double precision, e bool, f bytea, g date,
            h timestamptz, i interval, j jsonb, k json, l text[], m int4range, n inet, o bit(3), p varchar(5), q char(4),
            r numeric[], s point, t money)""",
    )
    statements = (
        """insert into item select gen_random_uuid(), n, n * 1e12, n / 3.0, 'NaN', n > 1, '\\x00ff', '4713-01-01 BC',
             'infinity', '1 year -2 days 03:04:05.6', '{"a": [1, null, "\\n"]}', '{"b" : 1}', array['x', null, 'y,"z'],
             '[1,5)', '10.0.0.1/8', b'101', 'ab', 'ab', '{1.50,NULL}', '(1,2)', '12.34'
             from generate_series(1, 3) as n""",
        "update item set h = '2024-02-29 12:00:00.123456+00', d = 1e-300 where a = 1",
    )
    delivery = capture(database, statements, tables=("item",), setup=setup)
    with applying(database, target, ["item"]) as run:
        run.write(delivery)

    assert rows(target, "item") == rows(database, "item")
    assert letters(database) == []


def test_a_table_without_a_key_keeps_as_many_equal_rows_as_the_source(database, target):
    setup = ("create table item (v text, doc json)", "alter table item replica identity full")
    statements = (
        "insert into item select 'same', '{\"a\" : 1}' from generate_series(1, 5)",
        "insert into item values (null, null), (null, null), ('other', '1')",
        "delete from item where ctid in (select ctid from item where v = 'same' limit 2)",
        "update item set v = 'moved' where ctid in (select ctid from item where v = 'same' limit 1)",
        "delete from item where ctid in (select ctid from item where v is null limit 1)",
        "update item set doc = '2' where v = 'other'",
    )
    delivery = capture(database, statements, tables=("item",), setup=setup)
    with applying(database, target, ["item"]) as run:
        for start, end in ((delivery.span.start, after(delivery, 8)), (delivery.span.start, delivery.span.end)):
            run.write(delivery.between(start, end))

    assert rows(target, "item") == rows(database, "item")
    assert len(rows(target, "item")) == 5


def test_full_identity_finds_rows_and_changed_keys_by_the_primary_key(database, target):
    setup = (*SETUP, "alter table item replica identity full")
    delivery = capture(database, EVERY_KIND, tables=("item",), setup=setup)
    with applying(database, target, ["item"]) as run:
        assert run.write(delivery).letters == 0

    assert rows(target, "item") == rows(database, "item")


def test_an_identity_index_serves_where_the_target_has_it_too(database, target):
    table = "create table item (id int primary key, code text not null unique, v text)"
    setup = (table, "alter table item replica identity using index item_code_key")
    statements = (
        "insert into item select i, 'c' || i, 'v' from generate_series(1, 5) as i",
        "update item set v = 'w' where id = 1",
        "update item set code = 'd' where id = 2",
        "delete from item where id = 3",
    )
    execute(target, table)
    delivery = capture(database, statements, tables=("item",), setup=setup)
    with applying(database, target, ["item"]) as run:
        run.write(delivery.between(delivery.span.start, after(delivery, 5)))
        run.write(delivery)

    assert rows(target, "item") == rows(database, "item")


def test_rows_that_trade_places_under_a_second_unique_key_are_applied_in_order(database, target):
    table = "create table item (id int primary key, place int unique)"
    statements = (
        "insert into item select i, i from generate_series(1, 50) as i",
        """do $$ begin
             for i in 1..49 by 2 loop
               update item set place = -1 where id = i;
               update item set place = i where id = i + 1;
               update item set place = i + 1 where id = i;
             end loop;
           end $$""",
        "insert into item values (60, 60)",
    )
    execute(target, table)
    delivery = capture(database, statements, tables=("item",), setup=(table,))
    with applying(database, target, ["item"]) as run:
        run.write(delivery.between(delivery.span.start, after(delivery, 50)))
        assert run.write(delivery) == Written(changes=76, skipped=50)

    assert rows(target, "item") == rows(database, "item")


def test_rows_that_the_target_has_already_are_brought_up_to_date(database, target):
    execute(target, SETUP[0], "insert into item values (1, 'stale', 'stale'), (2, 'stale', null)")
    delivery = capture(
        database, ("insert into item values (1, 'new', null), (3, 'new', null)",), tables=("item",), setup=SETUP
    )
    with applying(database, target, ["item"]) as run:
        assert run.write(delivery) == Written(changes=2)

    assert rows(target, "item") == ["(1,new,)", "(2,stale,)", "(3,new,)"]


def test_foreign_keys_and_triggers_of_the_target_stay_out_of_it(database, target):
    tables = (
        "create table item (id int primary key, v text, big text)",
        "create table part (id int primary key, item int references item on delete cascade)",
    )
    execute(target, *tables)
    statements = (
        "insert into item values (1, 'a', null)",
        "insert into part values (1, 1), (2, 1)",
        "truncate item cascade",
        "insert into item values (2, 'b', null)",
        "insert into part values (3, 2)",
    )
    delivery = capture(database, statements, tables=("part", "item"), setup=tables)
    with applying(database, target, ["item", "part"]) as run:
        run.write(delivery.between(delivery.span.start, after(delivery, 3)))
        run.write(delivery)

    assert rows(target, "part") == rows(database, "part") == ["(3,2)"]
    assert rows(target, "item") == rows(database, "item")


def test_a_role_that_may_not_switch_foreign_keys_off_writes_tables_in_an_order_that_they_allow(database, target):
    tables = (
        "create table zoo (id int primary key)",
        "create table animal (id int primary key, zoo int references zoo)",
    )
    execute(target, *tables)
    statements = (
        "insert into zoo values (1)",
        "insert into animal values (1, 1)",
        "delete from animal",
        "delete from zoo",
    )
    delivery = capture(database, statements, tables=("animal", "zoo"), setup=tables)
    with as_plain(target) as url, applying(database, url, ["animal", "zoo"]) as run:
        assert run.write(delivery.between(delivery.span.start, after(delivery, 2))) == Written(changes=2)
        assert rows(target, "animal") == ["(1,1)"]
        assert run.write(delivery) == Written(changes=2, skipped=2)
    assert rows(target, "zoo") == rows(target, "animal") == []


def test_a_constraint_that_is_checked_at_the_end_is_checked_before_that(database, target):
    """A refusal at the commit could neither wait for what another task brings nor become a letter."""
    execute(
        target,
        "create table zoo (id int primary key)",
        "create table animal (id int primary key, zoo int references zoo deferrable initially deferred)",
    )
    setup = ("create table zoo (id int primary key)", "create table animal (id int primary key, zoo int)")
    statements = ("insert into zoo values (1)", "insert into animal values (1, 1), (2, 7)")
    delivery = capture(database, statements, tables=("animal", "zoo"), setup=setup)
    animals = delivery.between(after(delivery, 1), delivery.span.end)
    with as_plain(target) as url, applying(database, url, ["animal", "zoo"]) as run:
        with pytest.raises(Contended):
            run.write(animals)
        assert run.write(delivery, is_alone=True) == Written(changes=2, letters=1)

    assert [letter.key for letter in letters(database)] == [{"id": 2}]
    assert rows(target, "animal") == ["(1,1)"]


def test_tables_whose_shape_changes_on_the_way_get_the_right_columns(database, target):
    statements = (
        "insert into item values (1, 'a', 'b')",
        "alter table item drop column big",
        "insert into item values (2, 'c')",
        "alter table item add column more int default 7",
        "insert into item values (3, 'd', 8)",
        "update item set v = 'e' where id = 1",
    )
    execute(target, "create table item (id int primary key, v text, big text, more int)")
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"], rule=SchemaChanges.IGNORE) as run:
        assert run.write(delivery).letters == 0

    assert rows(target, "item") == ["(1,e,b,7)", "(2,c,,)", "(3,d,,8)"]


def test_key_lanes_written_by_tasks_of_their_own_make_the_same(database, target):
    statements = [line for line in EVERY_KIND if "truncate" not in line and "set id" not in line and "set b =" not in line]
    delivery = capture(database, statements, tables=("item", "pair"), setup=SETUP)
    lanes = by_key(delivery, 3)
    assert len(lanes) == 3
    with applying(database, target, ["item", "pair"]) as run:
        written = sum((run.write(lane) for lane in lanes), Written())

    assert written == Written(changes=len(delivery.changes))
    for table in ("item", "pair"):
        assert rows(target, table) == rows(database, table)


@pytest.mark.parametrize("way", ["write", "write_envelopes"])
@pytest.mark.parametrize("key", ["primary key", ""], ids=["key", "keyless"])
def test_a_range_of_deletes_alone_finds_rows_whose_identity_is_the_whole_row(database, target, way, key):
    setup = (f"create table item (id int {key}, v text)", "alter table item replica identity full")
    statements = ("insert into item values (1, 'a'), (2, 'b'), (3, null)", "delete from item where id <> 2")
    delivery = capture(database, statements, tables=("item",), setup=setup)
    with applying(database, target, ["item"]) as run:
        getattr(run, way)(delivery.between(delivery.span.start, after(delivery, 3)))
        assert getattr(run, way)(delivery) == Written(changes=2, skipped=3)

    assert rows(target, "item") == rows(database, "item") == ["(2,b)"]


def test_a_type_that_does_not_allow_null_is_no_hindrance_for_rows_that_go_or_leave_values_alone(database, target):
    domain = "create domain title as text not null check (length(value) > 0)"
    execute(target, domain)
    table = "create table item (id int primary key, v title, big title, codes varchar(3)[])"
    setup = (domain, table, "alter table item alter column big set storage external")
    statements = (
        "insert into item select i, 'v', repeat('x', 4000), '{abc}' from generate_series(1, 3) as i",
        "delete from item where id = 1",
        "update item set v = 'w' where id = 2",
        "update item set id = 9 where id = 3",
    )
    delivery = capture(database, statements, tables=("item",), setup=setup)
    with applying(database, target, ["item"]) as run:
        run.write(delivery.between(delivery.span.start, after(delivery, 3)))
        assert run.write(delivery) == Written(changes=3, skipped=3)

    assert rows(target, "item") == rows(database, "item")


def test_a_table_without_a_key_that_only_grows_is_delivered(database, target):
    """As it is under a publication of all tables, where nobody has asked whether its rows can be told apart."""
    setup = ("create table item (v text)",)
    delivery = capture(database, ("insert into item values ('a'), ('a'), (null)",), tables=("item",), setup=setup)
    with applying(database, target, ["item"]) as run:
        assert run.write(delivery) == Written(changes=3)

    assert rows(target, "item") == rows(database, "item")


@pytest.mark.parametrize("change", ["delete from item where id = 1", "update item set id = 3 where id = 1"])
@pytest.mark.parametrize("cut", [0, 2])
def test_a_transform_that_renames_the_key_in_new_rows_only_is_refused_and_loses_no_delete(database, target, change, cut):
    def rename(row):
        return {**row, "after": row["after"] and row["after"].replace('"id"', '"number"')}

    def rename_everywhere(row):
        parts = {name: row[name] and row[name].replace('"id"', '"number"') for name in ("key", "before", "after")}
        return {**row, **parts}

    execute(target, "create table item (number int primary key, v text)")
    setup = ("create table item (id int primary key, v text)",)
    statements = ("insert into item values (1, 'a'), (2, 'b')", change)
    delivery = capture(database, statements, tables=("item",), setup=setup)
    with applying(database, target, []) as run:
        if cut:
            run.write_envelopes(delivery.between(delivery.span.start, after(delivery, cut)), rename_everywhere)
        with pytest.raises(SinkError, match=r"'(number|id)'"):
            run.write_envelopes(delivery, rename)
        assert len(rows(target, "item")) == cut
        run.write_envelopes(delivery, rename_everywhere)

    assert rows(target, "item") == rows(database, "item")
