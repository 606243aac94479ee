"""The way from a publication as it is to one as it is wanted."""

import pytest

from headwater.errors import IdentityMissing, SettingsError, SourceError
from headwater.postgres.replication.publication import (
    ALL_OPERATIONS,
    AddTables,
    Create,
    DropTables,
    Operation,
    Publication,
    SetOptions,
    choose_tables,
    plan,
)
from tests.support.capture.catalog_values import published, table

A, B, C = table(1, "a"), table(2, "b"), table(3, "c", schema="crm")
WANTED = Publication(name="shop", tables=("a", "b"))


def steps(wanted, existing, chosen=(A, B)):
    return plan(wanted, chosen, existing, [A, B, C])


def test_a_missing_publication_is_made_whole():
    assert steps(WANTED, None) == (Create((A, B), ALL_OPERATIONS, False),)


def test_nothing_is_done_when_it_fits():
    assert steps(WANTED, published(A, B)) == ()


def test_missing_tables_are_added_and_surplus_ones_dropped():
    assert steps(WANTED, published(B, C)) == (DropTables((C,)), AddTables((A,)))


def test_a_table_with_a_row_filter_is_taken_out_and_put_in_whole():
    assert steps(WANTED, published(A, B, narrowed=[A.oid])) == (DropTables((A,)), AddTables((A,)))


def test_operations_become_exactly_those_that_are_wanted():
    inserts = Publication(name="shop", tables=("a", "b"), operations=frozenset({Operation.INSERT}))

    assert steps(inserts, published(A, B)) == (SetOptions(frozenset({Operation.INSERT}), False),)


def test_the_way_of_partitions_is_set():
    via_root = Publication(name="shop", tables=("a", "b"), via_root=True)

    assert steps(via_root, published(A, B)) == (SetOptions(ALL_OPERATIONS, True),)


def test_a_publication_of_all_tables_is_left_alone_when_it_covers_what_is_wanted():
    inserts = Publication(name="shop", tables=("a", "b"), operations=frozenset({Operation.INSERT}))

    assert steps(inserts, published(all_tables=True)) == ()


def test_a_publication_of_all_tables_gets_the_operations_that_it_lacks():
    lacking = published(all_tables=True, truncates=False)

    assert steps(WANTED, lacking) == (SetOptions(ALL_OPERATIONS, False),)


def test_tables_in_a_schema_that_is_published_whole_need_no_more():
    assert steps(WANTED, published(schemas=["public"])) == ()
    assert steps(WANTED, published(schemas=["public"]), chosen=[A, C]) == (AddTables((C,)),)


def test_a_table_without_identity_is_refused_when_updates_are_published():
    bare = table(4, "bare", key=[], identity=[])

    with pytest.raises(IdentityMissing, match=r"table public\.bare has no replica identity.*add a primary key"):
        choose_tables(Publication(name="shop", tables=("bare",)), [bare])


def test_a_table_without_identity_is_welcome_when_only_inserts_are_published():
    bare = table(4, "bare", key=[], identity=[])
    inserts = Publication(name="shop", tables=("bare",), operations=frozenset({Operation.INSERT, Operation.TRUNCATE}))

    assert choose_tables(inserts, [bare]) == [bare]


def test_a_partition_without_identity_is_named():
    root, leaf = table(4, "root", kind="p"), table(5, "leaf", ancestors=[4], identity=[], replica_identity="n")

    with pytest.raises(IdentityMissing, match=r"public\.leaf"):
        choose_tables(Publication(name="shop", tables=("root",)), [root, leaf])


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"kind": "v"}, "is a view"),
        ({"kind": "m"}, "is a materialized view"),
        ({"kind": "f"}, "is a foreign table"),
        ({"persistence": "u"}, "is unlogged.*set logged"),
    ],
)
def test_what_cannot_be_published_is_named_with_a_remedy(facts, said):
    with pytest.raises(SourceError, match=rf"public\.odd {said}"):
        choose_tables(Publication(name="shop", tables=("odd",)), [table(4, "odd", **facts)])


@pytest.mark.parametrize("facts", [{"name": ""}, {"name": "a" * 64}, {"tables": ()}, {"operations": frozenset()}])
def test_a_publication_that_makes_no_sense_is_refused_before_anything_starts(facts):
    with pytest.raises(SettingsError):
        Publication(**({"name": "shop", "tables": ("a",)} | facts))


def test_steps_say_what_they_do():
    said = [str(step) for step in (DropTables((C,)), AddTables((A, B)), SetOptions(frozenset({Operation.INSERT}), True))]

    assert said == ["drop crm.c", "add public.a, public.b", "publish insert, partitions as their root"]
