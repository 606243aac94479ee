"""A table in two databases, compared by counts and checksums, with the rows that differ listed by key."""

from headwater.postgres.comparison.compare import (
    KINDS,
    Compared,
    Finding,
    Kind,
    Pair,
    Sides,
    compare_table,
    describe,
    look_again,
    pair_tables,
)
from headwater.postgres.comparison.difference import Counts, Difference
from headwater.postgres.comparison.layout import Incomparable, Layout
from headwater.postgres.comparison.side import Side
from headwater.postgres.comparison.statements import Moment

__all__ = [
    "KINDS",
    "Compared",
    "Counts",
    "Difference",
    "Finding",
    "Incomparable",
    "Kind",
    "Layout",
    "Moment",
    "Pair",
    "Side",
    "Sides",
    "compare_table",
    "describe",
    "look_again",
    "pair_tables",
]
