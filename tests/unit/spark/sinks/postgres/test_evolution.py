"""What became of a table between two looks at it."""

from dataclasses import replace

import pytest

from headwater.spark.frame import Layout, LayoutColumn
from headwater.spark.sinks.postgres.evolution import Evolution, Retyped, additions, difference, inherited

INT, TEXT = 23, 25
ID = LayoutColumn(1, "id", INT, -1, "integer", not_null=True)
V = LayoutColumn(2, "v", TEXT, -1, "text", not_null=False)
N = LayoutColumn(3, "n", INT, -1, "integer", not_null=True)
TABLE = Layout(16400, (ID, V, N), ("id",), "file 1")


def unnumbered(layout: Layout) -> Layout:
    """What a Relation message tells by itself."""
    return Layout(layout.oid, tuple(LayoutColumn(None, c.name, c.type_oid, c.typmod) for c in layout.columns))


def test_a_table_that_is_as_it_was_has_not_changed():
    assert difference(TABLE, TABLE) == Evolution()
    assert difference(TABLE, unnumbered(TABLE)) == Evolution()
    assert not Evolution().changes_shape


def test_a_column_with_the_same_number_and_another_name_is_renamed():
    found = difference(TABLE, replace(TABLE, columns=(ID, replace(V, name="value"), N)))
    assert found == Evolution(renamed=(("v", "value"),))


def test_names_that_were_swapped_are_two_renamed_columns():
    found = difference(TABLE, replace(TABLE, columns=(ID, replace(V, name="n"), replace(N, name="v"))))
    assert found == Evolution(renamed=(("v", "n"), ("n", "v")))


def test_without_numbers_a_renamed_column_is_a_dropped_and_an_added_one_and_in_doubt():
    now = unnumbered(replace(TABLE, columns=(ID, replace(V, name="value"), N)))
    found = difference(TABLE, now)
    assert (found.dropped, found.added) == (("v",), (now.columns[1],))
    assert "altered again" in found.doubts[0]


def test_a_column_that_is_there_and_not_sent_any_more_is_not_dropped():
    assert difference(TABLE, replace(TABLE, columns=(ID, N), others=(2,))) == Evolution()
    assert difference(TABLE, replace(TABLE, columns=(ID, N))) == Evolution(dropped=("v",))


@pytest.mark.parametrize(
    ("added", "files", "is_certain"),
    [
        (LayoutColumn(4, "c", INT, -1), "file 1", True),
        (LayoutColumn(4, "c", INT, -1, missing="7", has_missing=True, has_default=True), "file 1", True),
        (LayoutColumn(4, "c", INT, -1, missing="7", has_missing=True), "file 2", True),
        (LayoutColumn(4, "c", INT, -1, has_default=True), "file 1", False),
        (LayoutColumn(4, "c", INT, -1), "file 2", False),
    ],
)
def test_what_old_rows_have_in_a_new_column_is_known_unless_the_table_was_written_anew(added, files, is_certain):
    found = difference(TABLE, replace(TABLE, columns=(*TABLE.columns, added), files=files))
    assert found.added == (added,)
    assert (not found.doubts) is is_certain


@pytest.mark.parametrize("files", ["file 1", "file 2"])
def test_another_type_is_in_doubt_if_the_table_was_written_anew(files):
    longer = replace(V, type_oid=1043, typmod=24)
    found = difference(TABLE, replace(TABLE, columns=(ID, longer, N), files=files))
    assert found.retyped == (Retyped(longer, is_rewritten=files != "file 1"),)
    assert bool(found.doubts) is (files != "file 1")


def test_a_column_that_was_dropped_and_added_again_is_in_doubt_though_it_looks_the_same():
    found = difference(TABLE, replace(TABLE, columns=(ID, N, replace(V, number=4))))
    assert (found.dropped, [column.name for column in found.added]) == (("v",), ["v"])
    assert found.doubts == ("column v was dropped and added again",)


def test_another_table_of_the_same_name_is_in_doubt_whatever_it_looks_like():
    assert difference(TABLE, replace(TABLE, oid=16500)).doubts == ("another table has its name now",)


def test_a_primary_key_that_is_none_any_more_is_told_by_its_names_of_now():
    renamed = replace(ID, name="number")
    now = replace(TABLE, columns=(renamed, V, N), key=("n",))
    assert difference(TABLE, now).gone_key == ("number",)
    assert difference(TABLE, replace(now, key=("number",))).gone_key == ()
    assert difference(TABLE, replace(TABLE, columns=(V, N), key=("n",))).gone_key == ()


def test_a_column_that_may_be_null_from_now_on_is_told_and_is_no_change_of_shape():
    found = difference(TABLE, replace(TABLE, columns=(ID, V, replace(N, not_null=False))))
    assert found == Evolution(relaxed=("n",))
    assert not found.changes_shape


def test_only_the_columns_that_were_asked_for_are_added():
    assert additions(TABLE, ["n", "nowhere"], "why") == Evolution(added=(N,), doubts=("why",))


def test_a_primary_key_is_known_until_another_is():
    assert inherited(TABLE, unnumbered(TABLE)).key == ("id",)
    assert inherited(TABLE, replace(TABLE, key=())).key == ()
