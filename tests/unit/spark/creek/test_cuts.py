from itertools import pairwise

import pytest

from headwater.capture.pieces import Pages, Piece
from headwater.postgres.replication.messages import Relation
from headwater.spark.creek.cuts import Cuts

ROWS = 2048
RELATION = Relation(1, "public", "other", "d", ())


def _pieces(pages: int, each: int) -> list[Piece]:
    """A table of so many pages; the last piece is open."""
    starts = range(0, pages, each)
    return [
        Piece(
            number,
            RELATION,
            (),
            Pages(("public", "other"), first, first + each if first + each < pages else None, (), "true"),
        )
        for number, first in enumerate(starts)
    ]


def _places(cut) -> tuple[int, float]:
    """From which place to before which."""
    pages = cut.piece.pages
    last = float("inf") if pages.last is None else pages.last * ROWS + pages.last_row
    return pages.first * ROWS + pages.first_row, last


def _read(cuts: Cuts, is_too_much) -> list[tuple[int, float]]:
    """What is read in the end, and in which order."""
    read = []
    while (cut := cuts.take()) is not None:
        if cut.can_be_parted and is_too_much(*_places(cut)):
            cuts.give_back(cut)
        else:
            cuts.note_read()
            read.append(_places(cut))
    return read


def test_pieces_are_read_as_they_are_if_they_are_good():
    read = _read(Cuts(_pieces(10, 4), 4), lambda *_: False)
    assert read == [(0, 4 * ROWS), (4 * ROWS, 8 * ROWS), (8 * ROWS, float("inf"))]


@pytest.mark.parametrize("large", [0, 1, 5000, 8 * ROWS - 1, 8 * ROWS, 11 * ROWS + 17])
def test_around_a_row_that_is_too_much_every_place_is_read_once(large):
    reads = 0

    def is_too_much(first, last):
        nonlocal reads
        reads += 1
        return first <= large < last

    read = _read(Cuts(_pieces(12, 4), 4), is_too_much)
    assert read[0][0] == 0
    assert read[-1][1] == float("inf")
    assert all(one[1] == other[0] for one, other in pairwise(read))
    assert (large, large + 1) in read or large >= 8 * ROWS
    # Few are read in vain, and soon the parts are as large as they were.
    assert reads < 150


def test_a_table_of_large_rows_is_read_in_parts_that_are_good():
    failures = 0

    def is_too_much(first, last):
        nonlocal failures
        failures += last - first > 100
        return last - first > 100

    read = _read(Cuts(_pieces(64, 16), 16), is_too_much)
    assert all(last - first <= 100 for first, last in read[:-1])
    assert failures < len(read) / 4
    assert read[0][0] == 0
    assert read[-1][1] == float("inf")


def test_a_part_of_a_page_is_named_by_its_rows():
    cuts = Cuts(_pieces(1, 1), 1)
    cut = cuts.take()
    assert cut is not None
    first, rest = cut.parted(10)
    assert "ctid >= '(0,0)'" in first.piece.query()
    assert "ctid < '(0,10)'" in first.piece.query()
    assert "ctid >= '(0,10)'" in rest.piece.query()
    assert "ctid < " not in rest.piece.query()
