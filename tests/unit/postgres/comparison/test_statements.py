"""How many buckets a table gets."""

import pytest

from headwater.postgres.comparison.statements import choose_buckets


@pytest.mark.parametrize(
    ("rows", "buckets"),
    [(0, 1024), (-1, 1024), (500_000, 1024), (2_000_000, 2048), (5_000_000, 8192), (10_000_000_000, 65536)],
)
def test_buckets_are_a_power_of_two_that_grows_with_the_table_within_bounds(rows, buckets):
    assert choose_buckets(rows) == buckets
