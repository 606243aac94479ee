"""Entries of both sides merged by key: whatever is not on both sides, as often, is found once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headwater.postgres.comparison.difference import Counts, Difference, find_differences, hashes_by_key

parts = st.one_of(st.none(), st.text(alphabet="aé€𐍈\n,", max_size=2))
entries = st.lists(st.tuples(st.lists(parts, min_size=2, max_size=2), st.integers(0, 2)), max_size=12)


def ordered(rows):
    """As a server gives them: by the bytes of each part of the key in UTF-8, NULLs last."""
    return sorted(rows, key=lambda row: [(part is None, (part or "").encode()) for part in row[0]])


@given(entries, entries)
def test_the_differences_are_what_is_not_on_both_sides(source, target):
    found = list(find_differences(ordered(source), ordered(target)))

    ours, theirs = hashes_by_key(source), hashes_by_key(target)
    assert {one.key: (one.source, one.target) for one in found} == {
        key: (ours.get(key, ()), theirs.get(key, ()))
        for key in ours.keys() | theirs.keys()
        if ours.get(key) != theirs.get(key)
    }
    assert len({one.key for one in found}) == len(found)


@given(entries, entries)
def test_rows_that_are_missing_extra_and_different_make_up_the_difference_in_rows(source, target):
    counts = sum((one.counts for one in find_differences(ordered(source), ordered(target))), Counts())

    in_common = (Counter((tuple(k), h) for k, h in source) & Counter((tuple(k), h) for k, h in target)).total()
    assert counts.missing + counts.different == len(source) - in_common
    assert counts.extra + counts.different == len(target) - in_common


def test_a_row_on_both_sides_with_another_content_is_different_and_not_missing_and_extra():
    assert Difference(("1",), (5,), (6,)).counts == Counts(different=1)
    assert Difference(("1",), (5,), ()).counts == Counts(missing=1)
    assert Difference(("1",), (), (6,)).counts == Counts(extra=1)
    assert Difference(("1",), (5, 5, 7), (5,)).counts == Counts(missing=2)
    assert Difference(("1",), (5, 7), (5, 6, 6)).counts == Counts(extra=1, different=1)


def test_no_difference_is_false():
    assert not Counts()
    assert all([Counts(missing=1), Counts(extra=1), Counts(different=1)])
