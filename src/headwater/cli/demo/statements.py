"""The statements of the demo that set the stage, typed; those that make the traffic are in `writes`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg import sql

from headwater.postgres.catalog import Table
from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.cli.demo", "sql/demo.sql")

SCHEMA: Final = "headwater_demo"
PUBLICATION: Final = "headwater_demo"


@dataclass(frozen=True, slots=True)
class Existing:
    """A schema or a publication that bears our name; ours if a demo made it."""

    kind: str
    is_ours: bool


def lock_demo() -> Statement[bool]:
    """One row: whether no other demo runs in this database, and none can begin while the session lasts."""
    return SQL["lock_demo"].bind(bool)


def find_existing() -> Statement[Existing]:
    return SQL["find_existing"].bind(Existing)


def create_schema() -> Statement[None]:
    return SQL["create_schema"].compose()


def mark_publication() -> Statement[None]:
    return SQL["mark_publication"].compose()


def drop_publication() -> Statement[None]:
    return SQL["drop_publication"].compose()


def drop_schema() -> Statement[None]:
    return SQL["drop_schema"].compose()


def read_clock() -> Statement[datetime]:
    return SQL["read_clock"].bind(datetime)


def set_forms() -> Statement[None]:
    return SQL["set_forms"].compose()


def read_rows(table: Table, columns: Sequence[str]) -> Statement[None]:
    """All rows of a table; the row factory is left to the caller."""
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    return SQL["read_rows"].compose(columns=listed, table=sql.Identifier(table.schema, table.name))
