"""The comparison of the demo: that nothing which is not equal in source and target goes unseen."""

from headwater.cli.demo.compare import compare


def row(number, name, body="long"):
    return {"id": number, "name": name, "body": body}


def test_the_same_rows_in_another_order_are_equal():
    comparison = compare("item", ["id"], [row(1, "a"), row(2, None)], [row(2, None), row(1, "a")])

    assert comparison.is_equal
    assert (comparison.equal, comparison.differences) == (2, [])


def test_rows_that_are_missing_extra_or_different_are_counted_and_named():
    comparison = compare("item", ["id"], [row(1, "a"), row(2, "B"), row(4, "d")], [row(1, "a"), row(2, "b"), row(3, "c")])

    assert not comparison.is_equal
    assert (comparison.equal, comparison.missing, comparison.extra, comparison.different) == (1, 1, 1, 1)
    assert comparison.differences == [
        "item id=2 differs: name is 'B', in the target 'b'",
        "item id=4 is missing in the target",
        "item id=3 is in the target only",
    ]


def test_a_row_is_named_by_all_columns_of_its_key():
    source = [{"session": 7, "item": 1, "quantity": 2}]

    assert compare("cart", ["session", "item"], source, []).differences == [
        "cart session=7, item=1 is missing in the target"
    ]


def test_only_the_first_of_many_different_rows_are_named():
    comparison = compare("item", ["id"], [row(number, "a") for number in range(100)], [])

    assert comparison.missing == 100
    assert len(comparison.differences) == 6
    assert comparison.differences[-1] == "item: 95 more rows are not equal"


def test_a_column_that_the_target_lacks_is_no_null():
    comparison = compare("item", ["id"], [{"id": 1, "body": None}], [{"id": 1}])

    assert comparison.differences == ["item id=1 differs: body is None, in the target not there"]


def test_large_values_are_cut_short_where_they_are_named():
    comparison = compare("item", ["id"], [row(1, "a", "x" * 5000)], [row(1, "a", "y" * 5000)])

    assert len(comparison.differences[0]) < 150
