"""Which columns are compared, and by which key."""

import pytest

from headwater.postgres.catalog import Column, Table
from headwater.postgres.comparison.layout import Incomparable, Layout, Relation, plan_layout


def relation(*names, key=(), identity=(), generated=()):
    table = Table(1, "public", "t", "r", "p", "d", True, (), key, identity)
    columns = [
        Column(1, place, name, 23, -1, "integer", False, "s" if name in generated else "", "", None)
        for place, name in enumerate(names, start=1)
    ]
    return Relation(table, tuple(columns))


def test_columns_are_compared_in_the_order_of_the_source_and_by_its_primary_key():
    found = plan_layout(relation("id", "a", "b", key=("id",)), relation("b", "id", "a", "own"))

    assert found == Layout(("id", "a", "b"), ("id",), surplus=("own",))


def test_without_a_primary_key_the_replica_identity_tells_rows_apart():
    assert plan_layout(relation("a", "b", identity=("b",)), relation("a", "b")).key == ("b",)


def test_a_key_that_is_not_compared_is_none():
    source = relation("id", "a", "b", key=("id",), identity=("b",), generated=("id",))

    assert plan_layout(source, relation("id", "a", "b")) == Layout(("a", "b"), ("b",), generated=("id",))
    assert plan_layout(source, relation("a")) == Layout(("a",), (), lacking=("b",))


def test_tables_without_a_common_column_cannot_be_compared():
    with pytest.raises(Incomparable, match=r"public\.t has no column in common"):
        plan_layout(relation("a"), relation("b"))
