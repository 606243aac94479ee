"""The SQL of the parts: statements with their parameters and rows named."""

from typing import Final

from psycopg import sql

from headwater.postgres.statements import Statement, load

SQL: Final = load("benchmarks.snapshot")


def drop_free_slot(slot: str) -> Statement[bool]:
    """A row if it was dropped; none while somebody reads it."""
    return SQL["drop_free_slot"].bind(bool, slot=slot)


def drop_publication(name: str) -> Statement[None]:
    return SQL["drop_publication"].compose(name=sql.Identifier(name))


def count_pieces() -> Statement[int]:
    return SQL["count_pieces"].bind(int)


def count_accounts() -> Statement[int]:
    return SQL["count_accounts"].bind(int)


def has_accounts() -> Statement[bool]:
    return SQL["has_accounts"].bind(bool)
