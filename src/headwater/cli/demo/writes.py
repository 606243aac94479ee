"""What the traffic consists of: writes, each of one kind to one table, which know what changes they give."""

from dataclasses import dataclass
from types import NoneType

from headwater.cli.demo.statements import SQL
from headwater.model import Op
from headwater.postgres.statements import Statement


@dataclass(frozen=True, slots=True)
class Write:
    """A statement, and the change that each row it touches must give; a truncate gives one for the table."""

    table: str
    op: Op
    statement: Statement[None]


def add_customers(count: int) -> Write:
    return _write("add_customers", "customer", Op.INSERT, count=count)


def pay(count: int) -> Write:
    return _write("pay", "customer", Op.UPDATE, count=count)


def change_email() -> Write:
    """A customer gets another key."""
    return _write("change_email", "customer", Op.UPDATE_KEY)


def remove_customers(count: int) -> Write:
    return _write("remove_customers", "customer", Op.DELETE, count=count)


def place_orders(count: int) -> Write:
    return _write("place_orders", "orders", Op.INSERT, count=count)


def advance_orders(count: int) -> Write:
    return _write("advance_orders", "orders", Op.UPDATE, count=count)


def remove_orders(count: int) -> Write:
    return _write("remove_orders", "orders", Op.DELETE, count=count)


def write_documents(count: int) -> Write:
    return _write("write_documents", "document", Op.INSERT, count=count)


def retitle_documents(count: int) -> Write:
    """Leaves the large body alone, so that the WAL does not hold it."""
    return _write("retitle_documents", "document", Op.UPDATE, count=count)


def rewrite_documents(count: int) -> Write:
    return _write("rewrite_documents", "document", Op.UPDATE, count=count)


def remove_documents(count: int) -> Write:
    return _write("remove_documents", "document", Op.DELETE, count=count)


def fill_cart(count: int) -> Write:
    return _write("fill_cart", "cart", Op.INSERT, count=count)


def change_cart(count: int) -> Write:
    return _write("change_cart", "cart", Op.UPDATE, count=count)


def empty_cart(count: int) -> Write:
    return _write("empty_cart", "cart", Op.DELETE, count=count)


def truncate_cart() -> Write:
    return _write("truncate_cart", "cart", Op.TRUNCATE)


def write_readings(first: int, last: int) -> Write:
    return _write("write_readings", "reading", Op.INSERT, first=first, last=last)


def _write(name: str, table: str, op: Op, **parameters: int) -> Write:
    return Write(table, op, SQL[name].bind(NoneType, **parameters))
