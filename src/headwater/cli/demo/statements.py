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
SLOT: Final = "headwater_demo"
TARGET: Final = "headwater_demo_target"


@dataclass(frozen=True, slots=True)
class Existing:
    """Something that bears a name of ours; ours if a demo made it, used if a demo is at work on it."""

    name: str
    is_ours: bool
    is_used: bool


def lock_demo() -> Statement[bool]:
    """One row: whether no other demo runs in this database, and none can begin while the session lasts."""
    return SQL["lock_demo"].bind(bool)


def find_existing() -> Statement[Existing]:
    return SQL["find_existing"].bind(Existing)


def create_schema() -> Statement[None]:
    return SQL["create_schema"].compose()


def create_tables() -> Statement[None]:
    return SQL["create_tables"].compose()


def mark_publication() -> Statement[None]:
    return SQL["mark_publication"].compose()


def create_target() -> Statement[None]:
    """Cannot run in a transaction."""
    return SQL["create_target"].compose()


def mark_target() -> Statement[None]:
    return SQL["mark_target"].compose()


def end_reader() -> Statement[bool]:
    """A row if somebody has read the slot: whether that has ended."""
    return SQL["end_reader"].bind(bool)


def drop_slot() -> Statement[bool]:
    """A row if there was a slot."""
    return SQL["drop_slot"].bind(bool)


def drop_target() -> Statement[None]:
    """Cannot run in a transaction."""
    return SQL["drop_target"].compose()


def drop_publication() -> Statement[None]:
    return SQL["drop_publication"].compose()


def create_creek() -> Statement[None]:
    return SQL["create_creek"].compose()


def drop_creek() -> Statement[None]:
    return SQL["drop_creek"].compose()


def drop_schema() -> Statement[None]:
    return SQL["drop_schema"].compose()


def last_applied() -> Statement[datetime | None]:
    """In the target."""
    return SQL["last_applied"].bind(datetime)


def read_clock() -> Statement[datetime]:
    return SQL["read_clock"].bind(datetime)


def set_forms() -> Statement[None]:
    return SQL["set_forms"].compose()


def read_rows(table: Table, columns: Sequence[str]) -> Statement[None]:
    """All rows of a table; the row factory is left to the caller."""
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    return SQL["read_rows"].compose(columns=listed, table=sql.Identifier(table.schema, table.name))


def create_shop() -> Statement[None]:
    """In the target."""
    return SQL["create_shop"].compose()


def write_sale(customer: int) -> Statement[int]:
    """Gives the number of the sale."""
    return SQL["write_sale"].bind(int, customer=customer)


def list_events() -> Statement[str]:
    return SQL["list_events"].bind(str)


def count_waiting() -> Statement[int]:
    return SQL["count_waiting"].bind(int)
