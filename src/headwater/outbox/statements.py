"""The statements about the outbox, its partitions and the inbox, typed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

from psycopg import sql

from headwater.outbox.event import EncodedEvent
from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.outbox")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the outbox: rows from `lower` on and before `upper`; `bytes` with its indexes."""

    schema: str
    name: str
    lower: datetime
    upper: datetime
    bytes: int = 0

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a pipeline is known to have delivered: all that a snapshot sees, or nothing."""

    pipeline: str
    snapshot: str | None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What a table is, by the letters of pg_class, and what the current user may do with it."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    is_partition: bool
    can_select: bool
    rows_hidden: bool


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column: its type as declared, what a domain is made of, and what fills it when a row leaves it out."""

    name: str
    declared: str
    base: str
    kind: str
    not_null: bool
    generated: str
    filled_with: str | None


def insert_message(event: EncodedEvent) -> Statement[object]:
    return SQL["insert_message"].bind(
        object,
        id=event.id,
        topic=event.topic,
        type=event.type,
        key=event.key,
        payload=event.payload,
        headers=event.headers,
    )


def insert_messages(events: Sequence[EncodedEvent]) -> Statement[object]:
    query = SQL["insert_messages"]
    columns = {
        "ids": [event.id for event in events],
        "topics": [event.topic for event in events],
        "types": [event.type for event in events],
        "keys": [event.key for event in events],
        "payloads": [event.payload for event in events],
        "headers": [event.headers for event in events],
    }
    # `bind` knows no parameters in binary form. The text comes from a packaged file, as there.
    return Statement(query.name, sql.SQL(cast("Any", query.text)), columns, object)


def emit_message(prefix: str, content: str) -> Statement[str]:
    return SQL["emit_message"].bind(str, prefix=prefix, content=content)


def remember_message(consumer: str, message_id: str) -> Statement[bool]:
    return SQL["remember_message"].bind(bool, consumer=consumer, message_id=message_id)


def count_inbox_pages() -> Statement[int]:
    return SQL["count_inbox_pages"].bind(int)


def forget_pages(first: int, last: int, older_than: timedelta) -> Statement[object]:
    return SQL["forget_pages"].bind(object, first=f"({first},0)", last=f"({last},0)", older_than=older_than)


def list_partitions() -> Statement[Partition]:
    return SQL["list_partitions"].bind(Partition)


def read_clock() -> Statement[datetime]:
    return SQL["read_clock"].bind(datetime)


def see_latest() -> Statement[object]:
    return SQL["see_latest"].bind(object)


def lock_partitions() -> Statement[str]:
    return SQL["lock_partitions"].bind(str)


def bound_waiting(lock: timedelta, statement: timedelta = timedelta(0)) -> Statement[str]:
    """Limits for a transaction; none at all for 0."""
    milliseconds = [str(round(limit.total_seconds() * 1000)) for limit in (lock, statement)]
    return SQL["bound_waiting"].bind(str, lock_ms=milliseconds[0], statement_ms=milliseconds[1])


def has_strays(lower: datetime, upper: datetime) -> Statement[bool]:
    return SQL["has_strays"].bind(bool, lower=lower, upper=upper)


def create_partition(partition: Partition) -> Statement[None]:
    bounds = {"lower": sql.Literal(partition.lower), "upper": sql.Literal(partition.upper)}
    return SQL["create_partition"].compose(partition=partition.identifier, **bounds)


def hold_partition(partition: Partition) -> Statement[None]:
    return SQL["hold_partition"].compose(partition=partition.identifier)


def drop_partition(partition: Partition) -> Statement[None]:
    return SQL["drop_partition"].compose(partition=partition.identifier)


def list_coverage() -> Statement[Coverage]:
    return SQL["list_coverage"].bind(Coverage)


def list_behind(partition: Partition, coverage: Sequence[Coverage]) -> Statement[str]:
    return SQL["list_behind"].bind(
        str,
        pipelines=[one.pipeline for one in coverage],
        snapshots=[one.snapshot for one in coverage],
        lower=partition.lower,
        upper=partition.upper,
    )


def has_unpublished(partition: Partition) -> Statement[bool]:
    return SQL["has_unpublished"].bind(bool, lower=partition.lower, upper=partition.upper)


def delete_strays(before: datetime, coverage: Sequence[Coverage], limit: int) -> Statement[object]:
    return SQL["delete_strays"].bind(object, before=before, snapshots=[one.snapshot for one in coverage], limit=limit)


def count_strays(before: datetime) -> Statement[int]:
    return SQL["count_strays"].bind(int, before=before)


def grant_writing(role: str) -> Statement[None]:
    return SQL["grant_writing"].compose(role=sql.Identifier(role))


def describe_table(oid: int) -> Statement[TableFacts]:
    return SQL["describe_table"].bind(TableFacts, oid=oid)


def describe_columns(oid: int) -> Statement[ColumnFacts]:
    return SQL["describe_columns"].bind(ColumnFacts, oid=oid)


def has_index_by_time(oid: int, column: str) -> Statement[bool]:
    return SQL["has_index_by_time"].bind(bool, oid=oid, column=column)
