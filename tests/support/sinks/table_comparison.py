"""A comparison of one table of two databases, as the tests of it ask for."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from headwater.postgres.catalog import Table, list_tables
from headwater.postgres.comparison import (
    Compared,
    Finding,
    Pair,
    Side,
    Sides,
    compare_table,
    describe,
    look_again,
    pair_tables,
)
from headwater.postgres.connect import Connection, connect_sync


def only(connection: Connection, name: str) -> Table:
    (found,) = [table for table in list_tables(connection) if table.name == name]
    return found


@contextmanager
def paired(source_url: str, target_url: str, name: str) -> Iterator[tuple[Sides, Pair]]:
    """Two sides with their snapshots taken."""
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(connect_sync(url))) for url in (source_url, target_url)]
        tables = [only(connection, name) for connection in connections]
        sides = (Side("source", source_url, connections[0]), Side("target", target_url, connections[1]))
        for side in sides:
            side.prepare()
        encodings = {side.begin().encoding for side in sides}
        yield sides, pair_tables(sides, *tables, recodes=len(encodings) > 1)


def compare(source_url: str, target_url: str, name: str, limit: int = 20) -> tuple[Compared, list[Finding]]:
    with paired(source_url, target_url, name) as (sides, pair):
        compared = compare_table(sides, pair)
        return compared, describe(sides, pair, compared.differences, limit)


def compare_twice(
    source_url: str, target_url: str, name: str, between: Callable[[], None], settle: Callable[[], bool]
) -> Compared:
    """The first look in snapshots, and the second after something has happened."""
    with paired(source_url, target_url, name) as (sides, pair):
        compared = compare_table(sides, pair)
        for side in sides:
            side.end()
        between()
        return look_again(sides, pair, compared, settle)
