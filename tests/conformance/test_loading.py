"""What every sink owes to tables that are read as a whole, shown on each of them by one class of tests."""

from contextlib import closing
from dataclasses import dataclass, replace

import pytest

from headwater.capture.tables import prepare_tables
from headwater.postgres.connect import connect_sync
from headwater.spark.letters import find_letter, list_letters, prepare_letters
from headwater.spark.shape import Shape
from headwater.spark.sinks import Span, Written
from headwater.spark.sinks.replay import replay
from tests.conformance.sink_frames import Delivery, Reading, capture, read
from tests.conformance.sink_targets import KEYS, PIPELINE
from tests.support.servers.embedded import fresh_database, prepared_database

pytestmark = pytest.mark.timeout(300)

SETUP = (
    "create table item (id int primary key, v text, amount numeric(8,2), big text)",
    "create table pair (a int, b text, n int, primary key (a, b))",
    "insert into item select i, 'v' || i, i, repeat('x', i) from generate_series(1, 20) as i",
    "insert into item values (50, E'tab\\t and \\\\', 1234.56, null)",
)
# Between an attempt that dies and the next one.
MEANWHILE = (
    "delete from item where id in (3, 4)",
    "update item set v = 'changed' where id = 5",
    "insert into item values (21, 'new', 21, '')",
)
# While the second one reads: first the table that is read, then the one that is not, and afterwards both.
HELD = (
    "update item set v = 'later' where id in (1, 21)",
    "delete from item where id = 2",
    "insert into item values (30, 'held', 30, null)",
)
OTHERS = ("insert into pair values (1, 'x', 10), (1, 'y', 20)", "update pair set n = 11 where b = 'x'")
AFTERWARDS = ("insert into pair values (2, 'z', 30)", "update item set v = 'last' where id = 30")


def _prepare(url: str) -> None:
    prepare_letters(url)
    prepare_tables(url)


@pytest.fixture
def database(postgres18):
    """The state of the pipelines, with its tables."""
    with prepared_database(postgres18.url, _prepare) as url:
        yield url


@dataclass(frozen=True)
class Story:
    """An attempt that dies, another one, and what is committed while that one reads `item` and afterwards."""

    dead: Reading
    reading: Reading
    others: Delivery
    held: Delivery
    afterwards: Delivery

    @property
    def pieces_and_others(self) -> Delivery:
        """A batch with changes of another table, and the second half of the pieces."""
        part = self.reading.part(1, self.reading.last)
        return Delivery(self.others.frames, replace(self.others.span, loading=part.span.loading), part.chunks)

    @property
    def end(self) -> Delivery:
        """The batch that completes the attempt, behind the others."""
        end = self.reading.end
        return replace(end, span=replace(end.span, start=self.others.span.end, end=self.others.span.end))

    @property
    def end_with_others(self) -> Delivery:
        """The batch that completes the attempt, with changes of another table."""
        return replace(self.others, span=replace(self.others.span, loading=self.reading.end.span.loading))


@pytest.fixture(scope="module")
def source(postgres18):
    with fresh_database(postgres18.url) as url:
        run(url, SETUP)
        dead = read(url, "dead.1", ["item"])
        run(url, MEANWHILE)
        reading = read(url, "alive.2", ["item"])
        changes = capture(url, (*HELD, *OTHERS, *AFTERWARDS), tables=tuple(KEYS))
        start, middle, end = reading.position, changes.changes[4].position, changes.changes[7].position
        # The stream leaves what is held back behind, so that it comes later, in the same range.
        held, others = changes.between(start, middle), changes.between(middle, end)
        held, others = (replace(part, span=Span(start, end)) for part in (held, others))
        yield url, Story(dead, reading, others, held, changes.between(end, changes.span.end))


def run(url, statements):
    with closing(connect_sync(url)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def story(source):
    return source[1]


@pytest.fixture(params=[Shape.WIRE, Shape.ENVELOPE])
def shape(request):
    return request.param


class TestEverySink:
    def test_rows_are_seen_all_at_once_when_the_attempt_completes(self, target, opened, write, story, shape):
        sink, reading = opened(), story.reading
        first = write(sink, reading.part(0, 1), shape)
        second = write(sink, reading.part(1, reading.last), shape)
        before = target.content()

        end = write(sink, reading.end, shape)

        assert first + second == Written(changes=len(reading.rows)) == Written(changes=20)
        assert end == Written()
        assert before == target.expected([] if target.waits else reading.rows)
        assert target.content() == target.expected(reading.rows)

    def test_an_attempt_that_is_made_anew_leaves_no_row_of_the_dead_one(self, target, opened, write, story, shape):
        sink, reading = opened(), story.reading
        write(sink, story.dead.whole, shape)

        sink = opened()
        write(sink, reading.whole, shape)
        write(sink, reading.end, shape)

        assert {"3", "4"} <= {row.after["id"] for row in story.dead.rows} - {row.after["id"] for row in reading.rows}
        assert target.content() == target.expected(reading.rows if target.waits else story.dead.rows + reading.rows)
        assert target.aside() == []

    def test_pieces_that_come_again_add_nothing_where_the_target_can_tell(self, target, opened, write, story, shape):
        reading, count = story.reading, len(story.reading.rows)
        write(opened(), reading.whole, shape)

        sink = opened()
        again = write(sink, reading.whole, shape)
        write(sink, reading.end, shape)

        assert again == (Written(changes=count) if target.repeats else Written(skipped=count))
        assert target.content() == target.expected(reading.rows * (2 if target.repeats else 1))

    def test_a_completion_that_comes_again_changes_nothing(self, target, opened, write, story, shape):
        sink, reading, others = opened(), story.reading, story.others.changes
        write(sink, reading.whole, shape)
        first = write(sink, story.end_with_others, shape)

        again = [write(sink, story.end_with_others, shape)]
        sink = opened()
        again.append(write(sink, story.end_with_others, shape))
        held = write(sink, story.held, shape)

        assert first == Written(changes=3)
        assert again == [Written(changes=3) if target.repeats else Written(skipped=3)] * 2
        assert held == Written(changes=4)
        assert target.content() == target.expected(reading.rows + others * (3 if target.repeats else 1) + story.held.changes)
        assert target.aside() == []

    def test_other_tables_go_on_and_changes_follow_from_the_position_on(self, target, opened, write, story, shape):
        sink = opened()
        write(sink, story.reading.part(0, 1), shape)
        mixed = write(sink, story.pieces_and_others, shape)
        seen = target.content()
        write(sink, story.end, shape)
        held = [write(sink, story.held, shape), write(sink, story.held, shape)]
        write(sink, story.afterwards, shape)

        loaded, others, rest = story.reading.rows, story.others.changes, story.held.changes + story.afterwards.changes
        in_part = sum(chunk.rows.num_rows for chunk in story.pieces_and_others.chunks)
        assert mixed == Written(changes=in_part + len(others))
        assert seen == target.expected(others if target.waits else loaded + others)
        repeated = story.held.changes if target.repeats else []
        assert held[1] == (Written(changes=4) if target.repeats else Written(skipped=4))
        assert target.content() == target.expected(loaded + others + rest + repeated)

    def test_a_table_without_rows_ends_empty(self, target, opened, write, story, shape):
        sink, nothing = opened(), replace(story.dead, attempt="empty", chunks=())
        write(sink, story.reading.whole, shape)
        write(sink, story.reading.end, shape)
        full = target.content()

        assert write(sink, nothing.end, shape) == Written()

        assert target.content() == (target.expected([]) if target.keeps_last else full)

    def test_a_bad_row_becomes_a_letter_and_the_rest_arrives(self, target, opened, write, story, database):
        sink, reading = opened(), story.reading.spoiled("1234.56", "no-num!")
        loaded = write(sink, reading.whole)
        write(sink, reading.end)

        if not target.looks_inside:
            assert loaded == Written(changes=20)
            return
        good = [row for row in story.reading.rows if row.after["id"] != "50"]
        assert loaded == Written(changes=19, letters=1)
        assert target.content() == target.expected(good)
        with closing(connect_sync(database)) as state:
            (letter,) = list_letters(state, pipeline=PIPELINE)
            stored = find_letter(state, letter.id)
        assert stored is not None and stored.letter.message is not None
        assert (letter.op, letter.state, letter.table, letter.key) == ("r", "open", "item", {"id": 50})
        with pytest.raises(Exception, match="still cannot be"):
            replay(sink, stored.letter)

        message = stored.letter.message.replace(b"no-num!", b"1234.56")
        replay(sink, replace(stored.letter, message=message))

        assert target.content() == target.expected(story.reading.rows)
