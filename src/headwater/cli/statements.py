"""The statements of `headwater tail`, typed."""

from typing import Final

from psycopg import sql

from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.cli", "sql/tail.sql")


def own_publication(name: str) -> Statement[bool]:
    """One row; the name is held until the session ends."""
    return SQL["own_publication"].bind(bool, name=name)


def forgotten_publications(prefix: str) -> Statement[str]:
    return SQL["forgotten_publications"].bind(str, prefix=prefix)


def drop_publication(name: str) -> Statement[None]:
    return SQL["drop_publication"].compose(name=sql.Identifier(name))
