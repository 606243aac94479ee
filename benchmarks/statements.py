"""The SQL that several benchmarks share: statements with their parameters and rows named."""

from dataclasses import dataclass
from typing import Final

from psycopg import sql

from headwater.model import Lsn
from headwater.postgres.statements import Statement, load

SQL: Final = load("benchmarks")


@dataclass(frozen=True, slots=True)
class SlotState:
    active: bool
    confirmed_flush_lsn: Lsn


def create_rows() -> Statement[None]:
    return SQL["create_rows"].compose()


def empty_rows() -> Statement[int]:
    return SQL["empty_rows"].bind(int)


def write_rows(first: int, last: int) -> Statement[int]:
    return SQL["write_rows"].bind(int, first=first, last=last)


def write_small(rows: int) -> Statement[int]:
    return SQL["write_small"].bind(int, rows=rows)


def create_slot(slot: str) -> Statement[bool]:
    return SQL["create_slot"].bind(bool, slot=slot)


def copy_slot(slot: str, copy: str) -> Statement[bool]:
    return SQL["copy_slot"].bind(bool, slot=slot, copy=copy)


def is_active(slot: str) -> Statement[bool]:
    return SQL["is_active"].bind(bool, slot=slot)


def drop_slot(slot: str) -> Statement[bool]:
    return SQL["drop_slot"].bind(bool, slot=slot)


def slot_state(slot: str) -> Statement[SlotState]:
    return SQL["slot_state"].bind(SlotState, slot=slot)


def create_database(name: str, template: str = "template1") -> Statement[None]:
    return SQL["create_database"].compose(database=sql.Identifier(name), template=sql.Identifier(template))


def drop_database(name: str) -> Statement[None]:
    return SQL["drop_database"].compose(database=sql.Identifier(name))


def checkpoint() -> Statement[None]:
    return SQL["checkpoint"].compose()


def create_accounts() -> Statement[None]:
    return SQL["create_accounts"].compose()


def fill_accounts(rows: int) -> Statement[int]:
    return SQL["fill_accounts"].bind(int, rows=rows)


def vacuum_accounts() -> Statement[None]:
    return SQL["vacuum_accounts"].compose()
