"""Table names as users write them, what they stand for, and what a mistyped one may have meant."""

import pytest

from headwater.errors import SettingsError, SourceError
from headwater.postgres.catalog import leaves_without_identity, near_names, parse_pattern, select_tables
from tests.support.capture.catalog_values import table

ORDERS = table(1, "orders")
ITEMS = table(2, "Order Items")
SALES_ORDERS = table(3, "orders", schema="sales")
EVENTS = table(4, "events", kind="p")
EVENTS_MAY = table(5, "events_may", ancestors=[4])
REPORT = table(6, "report", kind="v")
SCRATCH = table(7, "scratch", persistence="u")
TABLES = [ORDERS, ITEMS, SALES_ORDERS, EVENTS, EVENTS_MAY, REPORT, SCRATCH]


def names(*patterns):
    return [str(found) for found in select_tables(TABLES, patterns)]


def test_a_plain_name_is_looked_up_along_the_search_path():
    assert names("orders") == ["public.orders"]


def test_a_qualified_name_is_looked_up_in_its_schema():
    assert names("sales.orders") == ["sales.orders"]


def test_unquoted_letters_are_lower_case():
    assert names("Sales.ORDERS") == ["sales.orders"]


def test_a_quoted_name_keeps_its_case_and_its_blanks():
    assert names('public."Order Items"') == ['public."Order Items"']


def test_a_quote_within_quotes_is_doubled():
    assert parse_pattern('"a""b.c"').matches(table(9, 'a"b.c'))


def test_a_wildcard_within_quotes_is_only_a_letter():
    pattern = parse_pattern('"order*"')

    assert not pattern.is_wild
    assert pattern.matches(table(9, "order*"))
    assert not pattern.matches(ORDERS)


def test_a_name_with_letters_of_a_regular_expression_means_itself():
    assert parse_pattern("a+b|c").matches(table(9, "a+b|c"))
    assert not parse_pattern("a+b").matches(table(9, "aab"))


def test_a_wildcard_leaves_out_views_unlogged_tables_and_partitions_of_what_it_matches():
    assert names("public.*") == ['public."Order Items"', "public.events", "public.orders"]


def test_a_wildcard_takes_partitions_whose_parent_it_does_not_match():
    assert names("events_*") == ["public.events_may"]


def test_a_wildcard_may_stand_for_the_schema():
    assert names("*.orders") == ["public.orders", "sales.orders"]


def test_a_plain_name_gives_what_bears_it_be_it_a_view():
    assert names("report") == ["public.report"]


def test_a_table_that_is_named_twice_comes_once():
    assert names("orders", "public.orders", "public.ord*") == ["public.orders"]


@pytest.mark.parametrize("text", ["", " ", ".", "a.", ".a", "a.b.c", "a b", 'a"b', '"a', '""', "a..b"])
def test_what_is_not_a_name_is_refused_before_anything_starts(text):
    with pytest.raises(SettingsError, match="not a table name"):
        parse_pattern(text)


def test_a_missing_table_is_named_with_those_that_are_near():
    with pytest.raises(SourceError) as caught:
        select_tables(TABLES, ["ordrs"])

    message = 'table ordrs does not exist; did you mean public.orders or sales.orders or public."Order Items"?'
    assert str(caught.value) == message


def test_the_same_name_in_another_schema_is_the_nearest():
    assert near_names(parse_pattern("shop.events"), TABLES)[0] == "public.events"


def test_a_missing_table_that_is_near_to_none_gets_another_hint():
    with pytest.raises(SourceError, match="table zzz does not exist; create it, or correct"):
        select_tables(TABLES, ["zzz"])


def test_a_wildcard_without_a_match_says_which_schemas_there_are():
    with pytest.raises(SourceError, match=r"no table matches zzz\.\*; .*public, sales"):
        select_tables(TABLES, ["zzz.*"])


def test_a_partitioned_table_has_the_identity_of_its_partitions():
    bare = table(5, "events_june", ancestors=[4], key=[], identity=[])

    assert leaves_without_identity([EVENTS, EVENTS_MAY, bare], EVENTS) == [bare]


def test_the_whole_row_is_an_identity_without_an_index():
    assert table(9, "log", key=[], identity=[], replica_identity="f").has_identity
