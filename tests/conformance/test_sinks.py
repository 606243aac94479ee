"""What every sink owes, shown on each of them by one class of tests."""

from contextlib import closing
from dataclasses import replace

import pytest

from headwater.model import Position
from headwater.postgres.connect import connect_sync
from headwater.spark.letters import list_letters, prepare_letters
from headwater.spark.shape import ENVELOPE, WIRE, Shape
from headwater.spark.sinks import Span, Written
from tests.conformance.sink_frames import Delivery, capture
from tests.conformance.sink_targets import KEYS, PIPELINE, ParquetTarget
from tests.support.servers.embedded import fresh_database

pytestmark = pytest.mark.timeout(300)

SETUP = (
    "create table item (id int primary key, v text, amount numeric(8,2), big text)",
    # Stored out of line as it is, so that the server does not send it when it stays.
    "alter table item alter column big set storage external",
    "create table pair (a int, b text, n int, primary key (a, b))",
)
STATEMENTS = (
    "insert into item select i, 'v' || i, i, repeat('x', 5000) from generate_series(1, 20) as i",
    "insert into pair values (1, 'x', 10), (1, 'y', 20), (2, 'x', null)",
    "insert into item values (50, 'fine', 1234.56, null)",
    "update item set v = 'changed' where id = 1",
    "update item set big = null, v = null where id = 2",
    "update item set id = 100 where id = 3",
    "delete from item where id = 4",
    "update pair set n = n + 1 where a = 1",
    "update pair set b = 'z' where a = 2",
    "delete from pair where (a, b) = (1, 'y')",
    "truncate pair",
    "insert into pair values (7, 'after', 1)",
)


@pytest.fixture(scope="module")
def source(postgres18):
    """A database with the tables, and all kinds of changes to them as the server sent them."""
    with fresh_database(postgres18.url) as url:
        yield url, capture(url, STATEMENTS, tables=tuple(KEYS), setup=SETUP)


@pytest.fixture
def delivery(source):
    return source[1]


def letters(url: str) -> list[tuple[str, str, object]]:
    prepare_letters(url)
    with closing(connect_sync(url)) as connection:
        return [(letter.sink, letter.table, letter.key) for letter in list_letters(connection, pipeline=PIPELINE)]


def middle(delivery: Delivery) -> Position:
    """A bound in the middle of a transaction."""
    first = delivery.changes[0].position
    return Position(first.commit_lsn, 7)


class TestEverySink:
    @pytest.mark.parametrize("lanes", [1, 3])
    def test_delivers_all_kinds_of_changes(self, target, opened, write, delivery, lanes):
        written = write(opened(), delivery.split(lanes))

        assert written == Written(changes=len(delivery.changes))
        assert target.content() == target.expected(delivery.changes)
        assert {change.op for change in delivery.changes} == {"c", "u", "u_pk", "d", "t"}

    def test_takes_changes_that_came_through_a_transform(self, target, opened, write, delivery):
        sink = opened()

        assert write(sink, delivery, Shape.ENVELOPE) == Written(changes=len(delivery.changes))
        again = write(sink, delivery, Shape.ENVELOPE)

        assert again.changes == (len(delivery.changes) if target.repeats else 0)
        assert target.content() == target.expected(delivery.changes * (2 if target.repeats else 1))

    def test_the_same_range_again_adds_nothing_where_the_target_can_tell(self, target, opened, write, delivery):
        sink, count = opened(), len(delivery.changes)
        write(sink, delivery)

        again = write(sink, delivery)

        if target.repeats:
            assert again == Written(changes=count)
            assert target.content() == target.expected(delivery.changes * 2)
        else:
            assert again == Written(skipped=count)
            assert target.content() == target.expected(delivery.changes)

    def test_of_a_range_that_overlaps_only_what_is_new_is_added(self, target, opened, write, delivery):
        cut = middle(delivery)
        head = delivery.between(delivery.span.start, cut)
        sink = opened()
        first = write(sink, head)

        second = write(sink, delivery)

        assert first == Written(changes=len(head.changes)) == Written(changes=7)
        if target.repeats:
            assert target.content() == target.expected(head.changes + delivery.changes)
        else:
            assert second == Written(changes=len(delivery.changes) - 7, skipped=7)
            assert target.content() == target.expected(delivery.changes)

    def test_a_new_checkpoint_directory_changes_nothing(self, target, opened, write, delivery):
        """After such a loss all ranges since the slot's position come again, cut in other places, to a new run."""
        cut, later = middle(delivery), delivery.changes[30].position
        write(opened(), delivery.between(delivery.span.start, cut))
        write(opened(), delivery.between(cut, delivery.span.end))

        sink = opened()
        write(sink, delivery.between(delivery.span.start, later))
        write(sink, delivery.between(later, delivery.span.end))

        assert target.content() == target.expected(delivery.changes * (2 if target.repeats else 1))

    def test_a_bad_row_becomes_one_dead_letter_and_the_rest_arrives(self, target, opened, write, delivery, database):
        spoiled = delivery.spoiled()
        good = [change for change in delivery.changes if (change.after or {}).get("id") != "50"]
        first = write(opened(), spoiled)
        again = write(opened(), spoiled)

        if not target.looks_inside:
            assert (first, letters(database)) == (Written(changes=len(delivery.changes)), [])
            return
        assert len(good) == len(delivery.changes) - 1
        assert first == Written(changes=len(good), letters=1)
        assert [letter[1:] for letter in letters(database)] == [("item", {"id": 50})]
        assert target.content() == target.expected(good * (2 if target.repeats else 1))
        assert again.changes == (len(good) if target.repeats else 0)

    def test_a_failure_in_mid_write_shows_nothing_and_the_next_attempt_completes(self, target, opened, write, delivery):
        sink = opened()
        if not target.looks_inside:
            assert write(sink, delivery.torn()) == Written(changes=len(delivery.changes))
            return
        with pytest.raises(Exception, match="cannot decode"):
            write(sink, delivery.torn())
        assert target.shows_parts or target.content() == target.expected([])

        written = write(sink, delivery)
        assert written.changes + written.skipped == len(delivery.changes)
        assert target.shows_parts or not written.skipped
        assert target.content() == target.expected(delivery.changes)

    def test_an_empty_batch_changes_nothing(self, target, opened, write, delivery, spark):
        sink = opened()
        write(sink, delivery)
        end = delivery.span.end

        shapes = [(Shape.WIRE, WIRE), *([(Shape.ENVELOPE, ENVELOPE)] if target.takes_envelopes else [])]
        for shape, schema in shapes:
            assert sink.write(spark.createDataFrame([], schema), shape, Span(end, end)) == Written()
        assert target.content() == target.expected(delivery.changes)

    def test_two_sinks_of_one_pipeline_do_not_disturb_each_other(self, target, opened, write, delivery, tmp_path, database):
        other = ParquetTarget(tmp_path / "other", database, name="other")
        sink, spoiled = opened(), delivery.spoiled()
        with closing(other.build()) as beside:
            beside.open()
            write(beside, delivery.between(delivery.span.start, middle(delivery)))

            write(sink, spoiled)
            write(beside, spoiled)

        good = [change for change in delivery.changes if (change.after or {}).get("id") != "50"]
        assert target.content() == target.expected(good)
        assert other.content() == other.expected(good)
        of_both = [sink.name, "other"] if target.looks_inside else ["other"]
        assert sorted(letter[0] for letter in letters(database)) == sorted(of_both)

    def test_an_unchanged_large_value_is_not_taken_for_null(self, target, opened, write, delivery):
        """Row 1 was inserted with a large value and then updated without it; row 2 was told to be NULL."""
        updates = [change for change in delivery.changes if change.op == "u" and change.table == "item"]
        assert [(change.unchanged, change.after["v"]) for change in updates] == [(("big",), '"changed"'), ((), None)]
        write(opened(), delivery)

        as_null = [_nulled(change) if change == updates[0] else change for change in delivery.changes]

        assert target.content() == target.expected(delivery.changes)
        if target.looks_inside:
            assert target.content() != target.expected(as_null)


def _nulled(change):
    return replace(change, after={**change.after, "big": None})
