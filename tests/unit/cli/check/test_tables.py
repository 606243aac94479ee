"""Findings about tables: kinds, keys, rights, columns."""

from dataclasses import replace

import pytest

from headwater.cli.check.finding import Level
from headwater.cli.check.tables import Database, check_left_out, check_table, goes_as_text
from headwater.postgres.types.registry import Field, Kind, PgType, Types
from tests.support.capture.catalog_values import COLUMN, RIGHTS, SERVER, TABLE, table

VECTOR = PgType(oid=90001, schema="public", name="vector")
TYPES = Types.builtin().extended(
    [
        VECTOR,
        PgType(oid=90002, schema="public", name="_vector", kind=Kind.ARRAY, element=90001),
        PgType(oid=90003, schema="public", name="mood", kind=Kind.ENUM),
        PgType(oid=90004, schema="public", name="pair", kind=Kind.COMPOSITE, fields=(Field("a", 23), Field("b", 90002))),
        PgType(oid=90005, schema="public", name="plain", kind=Kind.COMPOSITE, fields=(Field("a", 23), Field("b", 90003))),
        PgType(oid=90006, schema="public", name="short", kind=Kind.DOMAIN, base=25),
    ]
)


def findings(checked=TABLE, *, tables=None, columns=(COLUMN,), rights=RIGHTS, **facts):
    database = Database(SERVER, tables or [checked], columns, [rights], TYPES)
    return check_table(checked, replace(database, **facts))


def test_a_table_with_a_key_is_fine():
    (finding,) = findings()

    assert (finding.level, finding.subject) == (Level.OK, "table public.orders")
    assert finding.found == "1 columns; replica identity: primary key (id)"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"key": [], "identity": []}, "it has no primary key"),
        ({"identity": []}, "a deferrable primary key does not serve"),
        ({"identity": [], "replica_identity": "n"}, "it is set to nothing"),
        ({"identity": [], "replica_identity": "i"}, "it is set to an index that is gone"),
    ],
)
def test_a_table_without_identity_is_an_error_that_says_why(facts, said):
    (finding,) = findings(table(1, "orders", **facts))

    assert finding.level is Level.ERROR
    assert f"no replica identity ({said})" in finding.found
    assert "alter table public.orders replica identity" in finding.remedy


def test_a_partition_without_identity_is_named():
    root = table(1, "root", kind="p")
    leaf = table(2, "leaf", ancestors=[1], key=[], identity=[])

    (finding,) = findings(root, tables=[root, leaf])

    assert (finding.level, finding.subject) == (Level.ERROR, "table public.root, partition public.leaf")


def test_a_partitioned_table_says_how_many_partitions_it_has():
    root, leaf = table(1, "root", kind="p"), table(2, "leaf", ancestors=[1])

    (finding,) = findings(root, tables=[root, leaf])

    assert finding.found == "1 columns, partitioned in 1; replica identity: primary key (id)"


def test_the_whole_row_as_identity_without_a_key_is_a_warning():
    levels = [finding.level for finding in findings(table(1, "log", key=[], identity=[], replica_identity="f"))]

    assert levels == [Level.OK, Level.WARNING]


@pytest.mark.parametrize("facts", [{"kind": "v"}, {"kind": "m"}, {"kind": "f"}, {"persistence": "u"}])
def test_what_cannot_be_captured_is_an_error(facts):
    (finding,) = findings(table(1, "odd", **facts))

    assert finding.level is Level.ERROR
    assert finding.remedy


@pytest.mark.parametrize(
    ("facts", "remedy"),
    [
        ({"can_use_schema": False}, "run `grant usage on schema public to capture`"),
        ({"can_select": False}, "run `grant select on public.orders to capture`"),
    ],
)
def test_a_right_that_only_a_snapshot_needs_is_a_warning_with_the_grant_to_run(facts, remedy):
    _, finding = findings(rights=replace(RIGHTS, **facts))

    assert (finding.level, finding.remedy) == (Level.WARNING, remedy)


def test_row_security_that_hides_rows_is_a_warning():
    _, finding = findings(rights=replace(RIGHTS, rows_hidden=True))

    assert finding.level is Level.WARNING
    assert "bypassrls" in finding.remedy


def generated(kind):
    return [COLUMN, replace(COLUMN, attnum=2, name="total", generated=kind)]


def test_stored_generated_columns_are_a_warning_with_a_remedy_for_the_version():
    _, now = findings(columns=generated("s"))
    _, before = findings(columns=generated("s"), server=replace(SERVER, version_number=170000))

    assert "not in the stream: total" in now.found
    assert "publish_generated_columns = stored" in now.remedy
    assert "upgrade to PostgreSQL 18" in before.remedy


def test_stored_generated_columns_that_are_published_are_fine():
    assert len(findings(columns=generated("s"), publishes_generated=True)) == 1


def test_virtual_generated_columns_are_never_in_the_stream():
    _, finding = findings(columns=generated("v"), publishes_generated=True)

    assert "never in the stream: total" in finding.found


def test_columns_that_travel_as_text_are_named_with_their_type():
    columns = [COLUMN, replace(COLUMN, attnum=2, name="embedding", type_oid=90001, type_name="vector(3)")]

    _, finding = findings(columns=columns)

    assert (finding.level, finding.found) == (Level.WARNING, "of a type that travels as text: embedding (vector(3))")


@pytest.mark.parametrize(
    ("oid", "expected"),
    [
        (23, False),
        (1007, False),
        (90001, True),
        (90002, True),
        (90003, False),
        (90004, True),
        (90005, False),
        (90006, False),
    ],
)
def test_a_type_travels_as_text_if_a_part_of_it_is_an_extension_s(oid, expected):
    assert goes_as_text(oid, TYPES) is expected


def test_what_a_wildcard_leaves_out_is_mentioned_if_somebody_may_miss_it():
    left = [table(1, "seen", kind="v"), table(2, "scratch", persistence="u"), table(3, "afar", kind="f")]

    assert [finding.subject for finding in check_left_out(left)] == ["table public.scratch", "table public.afar"]
