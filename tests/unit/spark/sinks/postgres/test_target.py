"""Whether and how changes fit a table, told from its shape alone."""

from dataclasses import replace

import pytest

from headwater.postgres.types import Types
from headwater.spark.sinks.postgres.statements import TargetColumn
from headwater.spark.sinks.postgres.target import Misfit, Sent, Target, fit


def column(name: str, *, required=False, generated=False, always=False) -> TargetColumn:
    return TargetColumn(1, name, 25, "text", "text", required, generated, always)


TARGET = Target(
    "public", "item", "r", True, (column("id", required=True), column("v"), column("w")), (("id",), ("v",)), True
)


def fitted(target: Target, sent: Sent):
    return fit(target, sent, Types.builtin())


def test_rows_are_found_by_the_identity_of_the_source():
    assert fitted(TARGET, Sent(("w", "v", "id"), ("id",))).key == (2,)
    assert fitted(TARGET, Sent(("id", "v", "w"), ("v",))).key == (1,)


def test_with_whole_old_rows_the_key_is_the_target_s():
    assert fitted(TARGET, Sent(("id", "v"), None)).key == (0,)
    assert fitted(TARGET, Sent(("id", "v"), None, ("v",))).key == (1,)


def test_without_any_key_rows_are_found_by_all_columns():
    assert fitted(replace(TARGET, keys=(), has_primary=False), Sent(("id", "v"), None)).key == ()


@pytest.mark.parametrize(
    ("target", "sent", "said"),
    [
        (TARGET, Sent(("id", "x"), ("id",)), "lacks column 'x'"),
        (TARGET, Sent(("v", "w"), ("v",)), "column 'id'.* must not be null"),
        (TARGET, Sent(("id", "v", "w"), ("w",)), r"no primary key or unique index on \(w\)"),
        (replace(TARGET, keys=(), has_primary=False), Sent(("id", "v"), None, ("id",)), "no primary key or unique index"),
        (replace(TARGET, kind="v"), Sent(("id",), ("id",)), "is no table"),
        (replace(TARGET, can_write=False), Sent(("id",), ("id",)), "may not write"),
        (
            replace(TARGET, columns=(column("id"), column("v", generated=True))),
            Sent(("id", "v"), ("id",)),
            "'v' of public.item is generated",
        ),
        (
            replace(TARGET, columns=(column("id"), column("v", always=True))),
            Sent(("id", "v"), ("id",)),
            "'v'.* always as identity",
        ),
        (TARGET, Sent((), ("id",)), "no columns"),
    ],
)
def test_what_does_not_fit_is_told_with_table_column_and_remedy(target, sent, said):
    with pytest.raises(Misfit, match=said) as caught:
        fitted(target, sent)

    assert "public.item" in str(caught.value)
    assert ";" in str(caught.value), "the remedy follows"


def test_columns_that_are_generated_in_the_target_and_not_sent_are_no_hindrance():
    target = replace(TARGET, columns=(column("id"), column("v", required=True, generated=True)))

    assert fitted(target, Sent(("id",), ("id",))).names == ("id",)
