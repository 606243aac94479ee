"""The SQL of the parts: statements with their parameters and rows named."""

from typing import Final

from psycopg import sql

from headwater.postgres.statements import Statement, load

SQL: Final = load("benchmarks.creek")


def create_objects() -> Statement[None]:
    return SQL["create_objects"].compose()


def publish_orders(publication: str) -> Statement[None]:
    return SQL["publish_orders"].compose(publication=sql.Identifier(publication))


def write_orders(rows: int) -> Statement[int]:
    return SQL["write_orders"].bind(int, rows=rows)


def write_changes(changes: int, existing: int) -> Statement[int]:
    return SQL["write_changes"].bind(int, changes=changes, existing=existing)


def write_order(id: int) -> Statement[int]:
    return SQL["write_order"].bind(int, id=id)


def fill_orders(rows: int) -> Statement[int]:
    return SQL["fill_orders"].bind(int, rows=rows)


def vacuum_orders() -> Statement[None]:
    return SQL["vacuum_orders"].compose()
