"""Columns to be masked or hashed."""

from headwater.cli.check.columns import check_protected
from headwater.cli.check.tables import Database
from headwater.postgres.catalog import Column, Table
from headwater.postgres.types.registry import Types

TEXT, VARCHAR, INTEGER, TEXTS = 25, 1043, 23, 1009


def column(name, type_oid, type_name, position):
    return Column(1, position, name, type_oid, -1, type_name, False, "", "", None)


TABLE = Table(1, "public", "customers", "r", "p", "d", True, [], ["email"], ["email"])
DATABASE = Database(
    server=None,  # type: ignore[arg-type]  # no check of columns looks at it
    tables=[TABLE],
    columns=[
        column("email", TEXT, "text", 1),
        column("phone", VARCHAR, "character varying(20)", 2),
        column("age", INTEGER, "integer", 3),
        column("tags", TEXTS, "text[]", 4),
    ],
    rights=[],
    types=Types.builtin(),
)


def found(mask=(), hashed=()):
    findings = check_protected(dict.fromkeys(mask, "***"), hashed, [TABLE], DATABASE)
    return [(finding.level.value, finding.subject, finding.found, finding.remedy) for finding in findings]


def test_text_may_be_masked_and_hashed():
    assert [level for level, *_ in found(mask=["public.customers.phone"], hashed=["public.customers.email"])] == ["ok", "ok"]


def test_a_column_of_the_key_may_be_hashed_but_not_masked():
    ((level, subject, _, remedy),) = found(mask=["public.customers.email"])

    assert (level, subject, remedy) == ("error", "transform.mask public.customers.email", "hash it instead")


def test_what_is_not_text_is_refused_with_its_type():
    assert [(level, said) for level, _, said, _ in found(hashed=["public.customers.age", "public.customers.tags"])] == [
        ("error", "is of type integer"),
        ("error", "is of type text[]"),
    ]


def test_a_column_that_is_not_there_is_named_with_the_nearest():
    ((level, _, said, remedy),) = found(hashed=["public.customers.emial"])

    assert (level, said) == ("error", "there is no such column among the tables")
    assert remedy == "did you mean public.customers.email?"
