"""What the catalog says of a table, held against what a Relation message says."""

from dataclasses import replace

import pytest

from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.spark.sources.layouts import CatalogTable, _Read

INT, TEXT = 23, 25
TABLE = CatalogTable(
    oid=16400,
    schema="public",
    name="item",
    files="1",
    key=["id"],
    numbers=[1, 3, 4, 5],
    names=["id", "v", "twice", "c"],
    type_oids=[INT, TEXT, INT, INT],
    typmods=[-1, -1, -1, -1],
    type_names=["integer", "text", "integer", "integer"],
    missing=[None, None, None, "7"],
    has_missing=[False, False, False, True],
    has_default=[False, False, True, True],
    not_null=[True, False, False, False],
    is_generated=[False, False, True, False],
    newest_xid=1000,
)
RELATION = Relation(
    16400,
    "public",
    "item",
    "d",
    (RelationColumn("id", True, INT, -1), RelationColumn("v", False, TEXT, -1), RelationColumn("c", False, INT, -1)),
)


def test_a_message_that_the_catalog_matches_gets_numbers_and_what_old_rows_have():
    layout = TABLE.layout_of(RELATION)
    assert layout is not None and layout.is_known
    assert [(column.name, column.number, column.missing) for column in layout.columns] == [
        ("id", 1, None),
        ("v", 3, None),
        ("c", 5, "7"),
    ]
    assert (layout.others, layout.key) == ((4,), ("id",))


def test_generated_columns_are_not_sent():
    assert [column.name for column in TABLE.layout.columns] == ["id", "v", "c"]


@pytest.mark.parametrize(
    "column",
    [RelationColumn("v", False, INT, -1), RelationColumn("v", False, TEXT, 5), RelationColumn("x", False, TEXT, -1)],
)
def test_a_message_that_the_catalog_has_moved_on_from_gets_none(column):
    first, _, last = RELATION.columns
    assert TABLE.layout_of(replace(RELATION, columns=(first, column, last))) is None


@pytest.mark.parametrize(
    ("newest", "xids", "is_known"),
    [
        (1000, [1000], True),
        (1000, [1001, 5000], True),
        (1000, [1001, 999], False),
        (2**32 - 10, [5], True),
        (5, [2**32 - 10], False),
        (0, [3], True),
    ],
)
def test_numbers_are_only_told_to_transactions_that_no_later_one_has_altered_columns_since(newest, xids, is_known):
    layout = _Read(TABLE.layout, newest).layout_at(xids)
    assert layout.is_known is is_known
    assert [column.name for column in layout.columns] == ["id", "v", "c"]
    if not is_known:
        assert {column.number for column in layout.columns} == {None}
        assert [column.not_null for column in layout.columns] == [True, False, False]
