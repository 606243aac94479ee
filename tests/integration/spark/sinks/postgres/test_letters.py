"""Rows that the target does not take become dead letters while all others arrive, and letters go when they are outdated."""

from contextlib import closing

import pytest

from headwater.errors import SinkError
from headwater.postgres.connect import connect_sync
from headwater.spark.letters import find_letter
from headwater.spark.sinks import Written
from headwater.spark.sinks.postgres.lane import Contended
from tests.conformance.sink_frames import Delivery, capture
from tests.support.sinks.postgres_sink_run import Applying, after, applying, by_key, execute, letters, rows

SETUP = (
    "create table item (id int primary key, v text, big text)",
    "alter table item alter column big set storage external",
)
STRICT = "create table item (id int primary key, v varchar(5) check (v <> 'bad'), big text)"
LARGE = "insert into item select i, 'v', repeat('x', 4000) from generate_series(1, 5) as i"


def found(url: str) -> list[tuple[str, object, str]]:
    return [(letter.op, letter.key, str(letter.state)) for letter in letters(url)]


def stored(url: str, number: int):
    with closing(connect_sync(url)) as connection:
        letter = find_letter(connection, letters(url)[number].id)
    assert letter is not None
    return letter.letter


@pytest.mark.parametrize("value", ["too long", "bad"])
def test_one_refused_row_among_many_is_a_letter_and_the_rest_arrives(database, target, value):
    execute(target, STRICT)
    statements = (
        "insert into item select i, 'v' from generate_series(1, 500) as i",
        "update item set v = 'VALUE' where id = 250".replace("VALUE", value),
        "delete from item where id = 3",
    )
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        assert run.write(delivery) == Written(changes=501, letters=1)
        assert run.write(delivery) == Written(skipped=502)

    assert found(database) == [("u", {"id": 250}, "open")]
    assert rows(target, "item") == [row.replace(value, "v").replace('"', "") for row in rows(database, "item")]
    reason = letters(database)[0].reason
    assert ("22001" if value == "too long" else "23514") in reason


def test_a_refused_insert_and_what_follows_for_its_row(database, target):
    """The update that the target could take comes whole, so the row is as at the source, and the letter pointless."""
    execute(target, STRICT)
    statements = (
        "insert into item values (1, 'bad'), (2, 'good'), (3, 'bad')",
        "update item set v = 'fine' where id = 1",
    )
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        written = run.write(delivery)

    assert rows(target, "item") == ["(1,fine,)", "(2,good,)"]
    assert written.changes + written.letters == 4
    assert ("c", {"id": 3}, "open") in found(database)
    assert all(state == "superseded" for _, key, state in found(database) if key == {"id": 1})


def test_a_refused_row_in_a_range_of_its_own_is_outdated_by_a_later_one(database, target):
    execute(target, STRICT)
    statements = (
        "insert into item values (1, 'bad'), (2, 'bad'), (3, 'bad')",
        "update item set v = 'fine' where id = 1",
        "delete from item where id = 2",
    )
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        assert run.write(delivery.between(delivery.span.start, after(delivery, 3))) == Written(letters=3)
        assert [state for _, _, state in found(database)] == ["open"] * 3
        assert run.write(delivery) == Written(changes=2, skipped=3)

    assert [state for _, _, state in found(database)] == ["superseded", "superseded", "open"]
    assert rows(target, "item") == ["(1,fine,)"]


def test_a_truncate_outdates_all_letters_of_its_table(database, target):
    execute(target, STRICT)
    statements = ("insert into item values (1, 'bad')", "truncate item")
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        run.write(delivery.between(delivery.span.start, after(delivery, 1)))
        run.write(delivery)

    assert found(database) == [("c", {"id": 1}, "superseded")]


def test_an_update_that_left_a_large_value_alone_is_a_letter_when_the_row_is_missing(database, target):
    delivery = capture(database, (LARGE, "update item set v = 'w' where id < 3"), tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        run.write(delivery.between(delivery.span.start, after(delivery, 5)))
        execute(target, "delete from item where id = 1")
        assert run.write(delivery) == Written(changes=1, skipped=5, letters=1)

    assert found(database) == [("u", {"id": 1}, "open")]
    assert "does not have the row" in letters(database)[0].reason
    assert rows(target, "item") == [row for row in rows(database, "item") if not row.startswith("(1,")]


def test_an_update_that_left_a_large_value_alone_does_not_pass_a_letter_that_may_have_changed_it(database, target):
    execute(target, STRICT)
    statements = (
        LARGE,
        "update item set v = 'bad', big = repeat('y', 4000) where id = 1",
        "update item set v = 'w' where id = 1",
        "update item set v = 'x' where id = 2",
    )
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    for end in (after(delivery, 6), delivery.span.end):
        with applying(database, target, ["item"]) as run:
            run.write(delivery.between(delivery.span.start, end))

    assert found(database) == [("u", {"id": 1}, "open"), ("u", {"id": 1}, "open")]
    assert rows(target, "item")[0].startswith("(1,v,xxx"), "neither the new text nor the old value beside it"
    assert rows(target, "item")[1:] == rows(database, "item")[1:]


def test_deletes_of_missing_rows_are_no_trouble(database, target):
    delivery = capture(database, (LARGE, "delete from item"), tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        run.write(delivery.between(delivery.span.start, after(delivery, 5)))
        execute(target, "delete from item where id < 3")
        assert run.write(delivery) == Written(changes=5, skipped=5)

    assert rows(target, "item") == []


def test_a_refused_row_with_a_new_key_is_not_left_under_the_old_one(database, target):
    execute(target, "create table item (id int primary key check (id < 100), v text, big text)")
    statements = ("insert into item values (1, 'a'), (2, 'b')", "update item set id = 200, v = 'c' where id = 1")
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        assert run.write(delivery) == Written(changes=2, letters=1)

    assert rows(target, "item") == ["(2,b,)"]
    assert (stored(database, 0).key, stored(database, 0).new_key) == ({"id": 200}, None)


BOTH_WAYS = pytest.mark.parametrize("way", ["write", "write_envelopes"])
# The target has no room for what is longer, until it is given some.
NARROW = "create table item (id int primary key, v varchar(5), big text)"
WIDEN = "alter table item alter column v type text"


def deliver(run: Applying, way: str, delivery: Delivery, cut: int) -> None:
    """All changes, in two ranges unless the cut is 0."""
    write = getattr(run, way)
    if cut:
        write(delivery.between(delivery.span.start, after(delivery, cut)))
    write(delivery)


@BOTH_WAYS
@pytest.mark.parametrize("cut", [0, 2])
def test_a_refused_row_with_a_new_key_waits_also_when_its_old_key_is_used_again(database, target, way, cut):
    execute(target, NARROW)
    statements = (
        "insert into item values (1, 'a')",
        "update item set id = 7, v = 'far too long' where id = 1",
        "insert into item values (1, 'new')",
    )
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        deliver(run, way, delivery, cut)
        assert rows(target, "item") == ["(1,new,)"]
        assert found(database) == [("u_pk", {"id": 7}, "open")]
        execute(target, WIDEN)
        run.replay_all()

    assert rows(target, "item") == rows(database, "item")


@BOTH_WAYS
@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_what_concerns_a_row_that_has_yet_to_get_its_new_key_waits_for_that(database, target, way, cut):
    """A column was left alone, so that the row under the old key is needed whatever comes for that key."""
    execute(target, NARROW)
    statements = (
        "insert into item values (1, 'a', repeat('x', 4000))",
        "update item set id = 7, v = 'far too long' where id = 1",
        "insert into item values (1, 'n')",
        "update item set id = 5 where id = 1",
        "update item set v = 'ok' where id = 7",
    )
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        deliver(run, way, delivery, cut)
        assert [row[:6] for row in rows(target, "item")] == ["(1,a,x"]
        # The insert may be outdated by what follows it, which is whole.
        assert [(op, state) for op, _, state in found(database) if op != "c"] == [
            ("u_pk", "open"),
            ("u_pk", "open"),
            ("u", "open"),
        ]
        execute(target, WIDEN)
        run.replay_all()

    assert rows(target, "item") == rows(database, "item")
    assert len(rows(target, "item")) == 2


@BOTH_WAYS
@pytest.mark.parametrize("cut", [0, 2])
def test_a_new_key_for_a_row_with_a_letter_does_not_pass_it_unless_the_row_comes_whole(database, target, way, cut):
    execute(target, NARROW)
    statements = (
        "insert into item values (1, 'a', repeat('x', 4000))",
        "update item set v = 'far too long', big = repeat('y', 4000) where id = 1",
        "update item set id = 7, v = 'ok' where id = 1",
    )
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        deliver(run, way, delivery, cut)
        assert [row[:6] for row in rows(target, "item")] == ["(1,a,x"], "never the new key with the old value"
        assert found(database) == [("u", {"id": 1}, "open"), ("u_pk", {"id": 1}, "open")]
        execute(target, WIDEN)
        run.replay_all()

    assert rows(target, "item") == rows(database, "item")


@BOTH_WAYS
@pytest.mark.parametrize("cut", [0, 2])
def test_a_refused_row_with_a_new_key_outdates_the_letters_of_its_old_one(database, target, way, cut):
    execute(target, NARROW)
    statements = (
        "insert into item values (1, 'a')",
        "update item set v = 'far too long' where id = 1",
        "update item set id = 7 where id = 1",
    )
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        deliver(run, way, delivery, cut)
        assert found(database) == [("u", {"id": 1}, "superseded"), ("u_pk", {"id": 7}, "open")]
        execute(target, WIDEN)
        run.replay_all()

    assert rows(target, "item") == rows(database, "item")


def test_a_truncate_frees_the_keys_that_waited_for_a_row_to_get_its_new_one(database, target):
    execute(target, NARROW)
    statements = (
        "insert into item values (1, 'a', repeat('x', 4000))",
        "update item set id = 7, v = 'far too long' where id = 1",
        "truncate item",
        "insert into item values (1, 'n'), (7, 'm')",
    )
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        run.write(delivery.between(delivery.span.start, after(delivery, 2)))
        run.write(delivery)

    assert found(database) == [("u_pk", {"id": 1}, "superseded")]
    assert rows(target, "item") == rows(database, "item")


@BOTH_WAYS
def test_a_letter_of_a_new_key_is_outdated_by_a_later_change_of_that_key(database, target, way):
    """Else a replay of it would take the row back in time."""
    execute(target, NARROW)
    statements = (
        "insert into item values (1, 'a')",
        "update item set id = 7, v = 'far too long' where id = 1",
        "update item set v = 'new' where id = 7",
    )
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        deliver(run, way, delivery, 2)

    assert found(database) == [("u_pk", {"id": 7}, "superseded")]
    assert rows(target, "item") == rows(database, "item") == ["(7,new,)"]


def test_a_key_that_the_target_always_generates_cannot_be_changed_and_the_change_is_a_letter(database, target):
    execute(target, "create table item (id int generated always as identity primary key, v text, big text)")
    statements = (LARGE, "update item set id = 7 where id = 1", "update item set v = 'w' where id = 2")
    delivery = capture(database, statements, tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        assert run.write(delivery) == Written(changes=6, letters=1)
        assert "generated by default" in letters(database)[0].reason
        execute(target, "alter table item alter column id set generated by default")
        run.session.close()
        run.sink.close()
        run.replay_all()

    assert rows(target, "item") == rows(database, "item")


def test_a_letter_is_replayed_once_the_target_takes_it(database, target):
    execute(target, STRICT)
    delivery = capture(database, ("insert into item values (1, 'bad'), (2, 'good')",), tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        run.write(delivery)
        position = "select commit_lsn, ordinal from headwater.sink_position"
        with closing(connect_sync(target)) as connection:
            before = connection.execute(position).fetchall()
            letter = stored(database, 0)
            with pytest.raises(SinkError, match=r"still cannot be applied.*item_v_check"):
                run.sink.replay(letter)
            execute(target, "alter table item drop constraint item_v_check")
            run.sink.replay(letter)
            run.sink.replay(letter)
            assert connection.execute(position).fetchall() == before

    assert rows(target, "item") == rows(database, "item")


def test_a_value_that_is_none_of_its_type_is_a_letter(database, target):
    setup = ("create table item (id int primary key, amount numeric(8,2))",)
    statements = ("insert into item values (1, 1.5), (2, 1234.56), (3, 7)",)
    delivery = capture(database, statements, tables=("item",), setup=setup).spoiled()
    with applying(database, target, ["item"]) as run:
        assert run.write(delivery) == Written(changes=2, letters=1)

    assert found(database) == [("c", {"id": 2}, "open")]
    assert rows(target, "item") == ["(1,1.50)", "(3,7.00)"]


def test_many_refused_rows_do_not_take_the_others_with_them(database, target):
    execute(target, STRICT)
    statement = "insert into item select i, case when i % 50 = 0 then 'bad' else 'v' end from generate_series(1, 1000) as i"
    delivery = capture(database, (statement,), tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        assert run.write(delivery) == Written(changes=980, letters=20)

    assert len(rows(target, "item")) == 980


def test_letters_of_a_write_that_fails_in_the_end_come_once(database, target):
    execute(target, STRICT)
    delivery = capture(database, ("insert into item values (1, 'bad'), (2, 'good')",), tables=("item",), setup=SETUP)
    with applying(database, target, ["item"]) as run:
        # Refused only at the commit, when the letter is saved already.
        execute(
            target,
            """create function shut() returns trigger language plpgsql as
               $$ begin raise 'gate is shut' using errcode = 'XX001'; end $$""",
            """create constraint trigger shut after insert on item deferrable initially deferred
               for each row execute function shut()""",
            "alter table item enable always trigger shut",
            """create function defer() returns trigger language plpgsql as
               $$ begin set constraints shut deferred; return new; end $$""",
            "create trigger defer before insert on item for each row execute function defer()",
            "alter table item enable always trigger defer",
        )
        with pytest.raises(SinkError, match="gate is shut"):
            run.write(delivery)
        assert rows(target, "item") == []
        assert len(letters(database)) == 1
        execute(target, "drop trigger defer on item", "drop trigger shut on item")
        assert run.write(delivery) == Written(changes=1, letters=1)

    assert len(letters(database)) == 1


def test_lanes_in_each_other_s_way_are_left_to_one_task_that_has_all_of_them(database, target):
    table = "create table item (id int primary key, place int unique)"
    execute(target, table)
    statements = (
        "insert into item select i, i from generate_series(1, 8) as i",
        """do $$ begin
             for i in 1..7 by 2 loop
               update item set place = -1 where id = i;
               update item set place = i where id = i + 1;
               update item set place = i + 1 where id = i;
             end loop;
           end $$""",
    )
    delivery = capture(database, statements, tables=("item",), setup=(table,))
    first, second = (
        delivery.between(a, b)
        for a, b in ((delivery.span.start, after(delivery, 8)), (after(delivery, 8), delivery.span.end))
    )
    lanes = by_key(second, 4)
    with applying(database, target, ["item"]) as run:
        run.write(first)
        contended = 0
        for lane in lanes:
            try:
                run.write(lane)
            except Contended:
                contended += 1
        assert contended, "no two rows that trade places are in different lanes"
        run.write(Delivery(tuple(frame for lane in lanes for frame in lane.frames), second.span), is_alone=True)

    assert rows(target, "item") == rows(database, "item")
    assert letters(database) == []
