"""Batches cut by position and put together again hold the same changes, however they were made."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model import Lsn, Position
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.cut import Index, joined
from tests.data.record import load, recordings
from tests.support.capture import pgoutput_writer as write
from tests.support.capture.change_streams import changes_of, relation, streams
from tests.support.capture.recordings import batches

SIZES = st.sampled_from([1, 60, 200, 1 << 20])
ORIGIN, BEYOND = Position(Lsn(0), 0), Position(Lsn(1 << 62), 0)
ORDERS = 16401


def _cut(pieces: list[Batch], bounds: list[Position]) -> list[list[Batch]]:
    """The pieces by the ranges between the bounds."""
    edges = [ORIGIN, *sorted(bounds), BEYOND]
    found = []
    for start, end in pairwise(edges):
        parts = (Index.of(piece).between(start, end) for piece in pieces if len(piece))
        found.append([part for part in parts if part is not None])
    return found


def _bounds(stream: list[bytes]) -> st.SearchStrategy[list[Position]]:
    """Places to cut at: before a change, behind a transaction, or where there is nothing."""
    changes = changes_of(batches(stream))
    ends = [Position(batch.end, 0) for batch in batches(stream, 1) if batch.end is not None]
    places = [*(change.position for change in changes), *ends, Position(Lsn(1003), 2), Position(Lsn(1), 0)]
    return st.lists(st.sampled_from(places), max_size=5)


@given(st.data(), streams(), SIZES)
def test_what_is_cut_at_any_bounds_and_put_together_again_is_the_same(data, stream, size):
    bounds = data.draw(_bounds(stream))
    ranges = _cut(batches(stream, size), bounds)
    assert [change for parts in ranges for change in changes_of(parts)] == changes_of(batches(stream))


@given(st.data(), streams(), SIZES, SIZES)
def test_a_range_holds_the_same_however_the_batches_were_made(data, stream, one, other):
    bounds = data.draw(_bounds(stream))
    here, there = (_cut(batches(stream, size), bounds) for size in (one, other))
    assert list(map(changes_of, here)) == list(map(changes_of, there))


@given(st.data(), streams(), SIZES)
def test_a_range_holds_what_lies_at_or_after_its_start_and_before_its_end(data, stream, size):
    bounds = sorted(data.draw(_bounds(stream)))
    edges = [ORIGIN, *bounds, BEYOND]
    for (start, end), parts in zip(pairwise(edges), _cut(batches(stream, size), bounds), strict=True):
        for change in changes_of(parts):
            # A truncate of several tables is one message; a bound inside of it counts as one behind it.
            assert start <= change.position < end or change.op == "t"


@given(st.data(), streams(), SIZES)
def test_a_piece_that_was_cut_can_be_cut_again(data, stream, size):
    bounds = data.draw(_bounds(stream))
    once = [part for parts in _cut(batches(stream, size), bounds) for part in parts]
    twice = [part for parts in _cut(once, data.draw(_bounds(stream))) for part in parts]
    assert changes_of(twice) == changes_of(batches(stream))


@pytest.mark.parametrize(
    ("scenario", "version"), [(s.name, v) for s, v in recordings() if s.name not in ("prepared", "schema")]
)
def test_every_recording_is_the_same_when_it_is_cut_before_each_of_its_changes(scenario, version):
    stream = load(scenario, version)
    whole = changes_of(batches(stream))
    # Of a transaction of thousands of changes a few dozen will do.
    bounds = [change.position for change in whole][:: max(1, len(whole) // 40)]
    for size in (300, 1 << 20):
        assert [change for parts in _cut(batches(stream, size), bounds) for change in changes_of(parts)] == whole


def test_the_end_of_a_transaction_is_before_one_whose_commit_begins_there():
    stream = [write.begin(100), relation(ORDERS), write.insert(ORDERS, ["1", "a"]), write.commit(100, 110)]
    stream += [write.begin(110, xid=2), write.insert(ORDERS, ["2", "b"]), write.commit(110, 120)]
    first, second = _cut(batches(stream), [Position(Lsn(110), 0)])
    assert [change.xid for change in changes_of(first)] == [1]
    assert [change.xid for change in changes_of(second)] == [2]
    assert second[0].begin is None


@given(streams(), SIZES, st.integers(1, 8))
def test_a_bound_within_some_rows_leaves_no_more_than_those_and_takes_whole_transactions_where_it_can(stream, size, rows):
    for batch in batches(stream, size):
        if not batch.changes:
            continue
        index, changes = Index.of(batch), changes_of([batch])
        bound = index.bound_within(rows)
        part = index.between(ORIGIN, bound)
        assert part is not None
        taken = changes_of([part])
        assert taken == changes[: len(taken)]
        # One message may be more than that: a truncate of several tables.
        first = [
            change for change in changes if (change.position.commit_lsn, change.op) == (changes[0].position.commit_lsn, "t")
        ]
        assert 1 <= len(taken) <= max(rows, len(first))
        behind = {change.position.commit_lsn for change in changes[len(taken) :]}
        if bound.ordinal:
            # In mid transaction, so not even the first one ends within.
            assert {change.position.commit_lsn for change in taken} == {changes[0].position.commit_lsn}
        else:
            assert behind.isdisjoint({taken[-1].position.commit_lsn}) or bound.commit_lsn in behind


def test_a_bound_within_some_rows_is_the_last_commit_that_fits():
    def transaction(lsn: int, rows: int) -> list[bytes]:
        return [write.begin(lsn), *[write.insert(ORDERS, ["1", "a"])] * rows, write.commit(lsn, lsn + 5)]

    first = [write.begin(100), relation(ORDERS), write.insert(ORDERS, ["1", "a"]), write.commit(100, 105)]
    (batch,) = batches([*first, *transaction(200, 2), *transaction(300, 5)])
    index = Index.of(batch)
    assert [index.bound_within(rows) for rows in (1, 2, 3, 4, 7, 8, 99)] == [
        Position(Lsn(105), 0),
        Position(Lsn(105), 0),
        Position(Lsn(205), 0),
        Position(Lsn(205), 0),
        Position(Lsn(205), 0),
        Position(Lsn(305), 0),
        Position(Lsn(305), 0),
    ]
    rest = index.between(Position(Lsn(205), 0), BEYOND)
    assert rest is not None and Index.of(rest).bound_within(2) == Position(Lsn(300), 2)


@given(streams(), SIZES, st.sampled_from([1, 300, 1 << 20]))
def test_joining_changes_nothing_but_the_number_of_batches(stream, size, most):
    pieces = batches(stream, size)
    together = list(joined(pieces, most))
    assert changes_of(together) == changes_of(pieces)
    assert sum(batch.changes for batch in together) == sum(batch.changes for batch in pieces)
    alone = {id(piece) for piece in pieces}
    assert all(len(batch.data) <= most or id(batch) in alone for batch in together)
    if together:
        assert together[-1].end == pieces[-1].end


def test_small_neighbours_are_joined():
    stream = [write.begin(100), relation(ORDERS), write.insert(ORDERS, ["1", "a"]), write.commit(100, 105)]
    stream += [write.begin(200), write.insert(ORDERS, ["1", "a"]), write.commit(200, 205)]
    (whole,) = batches(stream)
    pieces = [piece for parts in _cut([whole], [Position(Lsn(105), 0)]) for piece in parts]
    assert [piece.changes for piece in pieces] == [1, 1]
    (batch,) = joined(pieces, 1 << 20)
    assert (batch.data, batch.changes, batch.end) == (whole.data, whole.changes, whole.end)


def test_batches_that_know_a_table_differently_are_not_joined():
    wider = write.relation(ORDERS, "orders", [("id", 23, -1, True), ("v", 25, -1, False), ("w", 25, -1, False)])
    stream = [write.begin(100), relation(ORDERS), write.insert(ORDERS, ["1", "a"]), write.commit(100, 105)]
    stream += [write.begin(200), wider, write.message(200, "app", b"x" * 60), write.commit(200, 205)]
    stream += [write.begin(300), write.insert(ORDERS, ["2", "b", "c"]), write.commit(300, 305)]
    pieces = [piece for piece in batches(stream, 100) if piece.changes]
    assert changes_of(joined(pieces, 1 << 20)) == changes_of(pieces)
