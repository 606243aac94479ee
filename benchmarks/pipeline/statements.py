"""The SQL of the parts: statements with their parameters and rows named."""

from dataclasses import dataclass
from typing import Final

from psycopg import sql

from headwater.postgres.statements import Statement, load

SQL: Final = load("benchmarks.pipeline")


@dataclass(frozen=True, slots=True)
class Content:
    """What a table holds: equal for tables with equal rows, in whatever order."""

    rows: int
    checksum: str


def create_events() -> Statement[None]:
    return SQL["create_events"].compose()


def publish_events(publication: str) -> Statement[None]:
    return SQL["publish_events"].compose(publication=sql.Identifier(publication))


def write_event(id: int) -> Statement[int]:
    return SQL["write_event"].bind(int, id=id)


def last_event() -> Statement[int]:
    return SQL["last_event"].bind(int)


def create_writer(publication: str) -> Statement[None]:
    return SQL["create_writer"].compose(publication=sql.Identifier(publication))


def write_changes(changes: int, rows: int) -> Statement[int]:
    return SQL["write_changes"].bind(int, changes=changes, rows=rows)


def content() -> Statement[Content]:
    return SQL["content"].bind(Content)


def subscribe(source_url: str, publication: str, slot: str) -> Statement[None]:
    return SQL["subscribe"].compose(
        source=sql.Literal(source_url), publication=sql.Identifier(publication), slot=sql.Literal(slot)
    )


def unsubscribe() -> list[Statement[None]]:
    """The slot is not the subscription's to drop."""
    return [SQL[name].compose() for name in ("disable_subscription", "leave_slot", "drop_subscription")]
