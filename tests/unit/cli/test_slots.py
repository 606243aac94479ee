"""Which slots are ours, and which of them are left behind."""

from dataclasses import replace

import pytest

from headwater.cli.slots import is_orphan, is_ours
from tests.support.capture.catalog_values import SLOT

OURS = replace(SLOT, name="headwater_shop")


def test_a_slot_is_ours_by_its_name():
    assert is_ours(OURS)
    assert not is_ours(SLOT)


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        (OURS, True),
        (replace(OURS, active=True, active_pid=7), False),
        (replace(OURS, temporary=True), False),
        (SLOT, False),
    ],
)
def test_an_orphan_is_one_of_ours_that_outlives_its_reader(slot, expected):
    assert is_orphan(slot) is expected
