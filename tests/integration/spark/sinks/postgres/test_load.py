"""Rows of whole tables are loaded aside: a piece whole or not at all, once, by the run that may write, and as it comes."""

import gc
import weakref
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest
from psycopg import sql

from headwater.errors import SinkError, SinkFenced, SinkUnavailable
from headwater.postgres.connect import connect_sync
from headwater.spark.sinks import Written
from headwater.spark.sinks.postgres.load import PieceLoader, chunk_pieces
from tests.conformance.sink_frames import Reading, read
from tests.support.sinks.postgres_sink_run import applying, execute, letters, rows

SETUP = (
    "create table item (id int primary key, v text)",
    "insert into item select i, 'v' || i from generate_series(1, 40) as i",
)


@pytest.fixture
def reading(database) -> Reading:
    execute(database, *SETUP)
    return read(database, "first", ["item"])


def asides(url: str) -> list[int]:
    """How many rows each table has that rows wait in."""
    with closing(connect_sync(url)) as connection:
        found = connection.execute(
            "select relname from pg_class where relnamespace = 'headwater'::regnamespace and relname like 'aside%'"
        ).fetchall()
        count = sql.SQL("select count(*) from {}")
        counts = (connection.execute(count.format(sql.Identifier("headwater", name))).fetchone() for (name,) in found)
        return [row[0] for row in counts if row is not None]


def test_rows_wait_aside_until_all_are_there(database, target, reading):
    with applying(database, target, ["item"]) as run:
        run.begin(reading)
        assert run.load(reading) == Written(changes=40)
        assert (asides(target), rows(target, "item")) == ([40], [])

        run.complete(reading)

    assert (asides(target), rows(target, "item")) == ([], rows(database, "item"))


def test_a_piece_is_there_whole_or_not_at_all(database, target, reading):
    def torn(chunks):
        yield from chunks[:3]
        raise RuntimeError("the task was killed")

    with applying(database, target, ["item"]) as run:
        run.begin(reading)
        loading = reading.whole.span.loading
        loader = PieceLoader(run.address, run.session, run.epoch, loading)
        with pytest.raises(RuntimeError, match="the task was killed"):
            for piece, found in chunk_pieces(torn(reading.chunks), loading, run.address):
                loader.load(found, piece)
        assert asides(target) == [20]

        assert run.load(reading) == Written(changes=20, skipped=20)
        run.complete(reading)

    assert rows(target, "item") == rows(database, "item")


def test_a_connection_that_is_lost_in_mid_piece_leaves_nothing_of_it_and_the_batch_may_come_again(database, target, reading):
    with applying(database, target, ["item"]) as run:
        run.begin(reading)
        loading = reading.whole.span.loading
        loader = PieceLoader(run.address, run.session, run.epoch, loading)

        def cut(chunks):
            yield from chunks[:1]
            execute(target, f"select pg_terminate_backend({run.session.connection.info.backend_pid})")
            yield from chunks[1:]

        with pytest.raises(SinkUnavailable):
            for piece, found in chunk_pieces(cut(reading.chunks), loading, run.address):
                loader.load(found, piece)
        assert asides(target) == [0]

        assert run.load(reading) == Written(changes=40)


def test_a_task_holds_no_more_than_the_chunk_that_it_writes(database, target, reading):
    (first, *_), alive = reading.chunks, []

    def chunks():
        for number in range(4):
            batch = pa.RecordBatch.from_pydict({"id": [str(number)], "v": ["x"]})
            alive.append(weakref.ref(batch))
            chunk = replace(first, rows=batch, first_row=number)
            del batch
            yield chunk
            del chunk
            gc.collect()
            # The one that was just given may still be in the hands of whoever took it.
            assert [ref() is not None for ref in alive[:-1]] == [False] * (len(alive) - 1)

    with applying(database, target, ["item"]) as run:
        run.begin(reading)
        loading = reading.whole.span.loading
        loader = PieceLoader(run.address, run.session, run.epoch, loading)
        for piece, found in chunk_pieces(chunks(), loading, run.address):
            assert loader.load(found, piece) == Written(changes=4)


def test_a_run_that_was_taken_over_from_loads_and_swaps_nothing(database, target, reading):
    with applying(database, target, ["item"]) as old:
        old.begin(reading)
        with applying(database, target, ["item"]) as new:
            with pytest.raises(SinkFenced):
                old.load(reading)
            with pytest.raises(SinkFenced):
                old.complete(reading)
            assert new.load(reading) == Written(changes=40)
            assert rows(target, "item") == []
            new.complete(reading)

    assert rows(target, "item") == rows(database, "item")


def test_a_late_task_of_an_attempt_that_is_over_leaves_nothing_behind(database, target, reading):
    with applying(database, target, ["item"]) as run:
        run.take(reading)

        assert run.load(reading) == Written(skipped=40)

    assert (asides(target), rows(target, "item")) == ([], rows(database, "item"))


def test_the_rows_of_a_dead_attempt_go_when_the_next_one_begins(database, target, reading):
    again = read(database, "second", ["item"])
    with applying(database, target, ["item"]) as run:
        run.begin(reading)
        run.load(reading)
        run.begin(again)
        assert asides(target) == []
        assert run.load(reading) == Written(skipped=40)

        run.load(again)
        run.complete(again)

    assert (asides(target), rows(target, "item")) == ([], rows(database, "item"))


def test_a_table_that_came_later_is_made(database, target):
    execute(database, "create table known (id int primary key)")
    with applying(database, target, ["known"]) as run:
        execute(database, *SETUP)
        run.take(read(database, "first", ["item"]))

    assert rows(target, "item") == rows(database, "item")
    with pytest.raises(Exception, match="duplicate key"):
        execute(target, "insert into item values (1, 'twice')")


def test_a_value_that_the_target_does_not_read_is_a_letter_and_its_replay_waits_for_the_others(database, target, reading):
    execute(target, "create table item (id int primary key, v varchar(2))")
    with applying(database, target, ["item"]) as run:
        run.begin(reading)
        assert run.load(reading) == Written(changes=9, letters=31)
        assert {(letter.op, letter.table, letter.state) for letter in letters(database)} == {("r", "item", "open")}
        with pytest.raises(
            SinkError, match=r"table public.item is still being loaded; replay the letter when it is complete"
        ):
            run.replay_all()

        run.complete(reading)
        assert len(rows(target, "item")) == 9
        execute(target, "alter table item alter v type text")
        run.replay_all()

    assert rows(target, "item") == rows(database, "item")
