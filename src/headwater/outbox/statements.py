"""The statements about the outbox, its partitions and the inbox, typed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from psycopg import sql

from headwater.outbox.event import EncodedEvent
from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.outbox")
RELAY: Final = load("headwater.outbox", "sql/relay.sql")


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


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """A row that a relay has taken; times are microseconds since 1970."""

    id: str
    created_us: int
    topic: str
    type: str
    key: str | None
    payload: str
    headers: str
    attempts: int


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A row that is not tried any more, and why."""

    id: UUID
    created_at: datetime
    topic: str
    type: str
    key: str | None
    attempts: int
    error: str | None


@dataclass(frozen=True, slots=True)
class RelayState:
    """The outbox as its relays see it; `leased` and `postponed` are part of `pending`."""

    pending: int
    leased: int
    postponed: int
    dead: int
    oldest_age: timedelta | None
    served_since: datetime | None
    lanes: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that was not taken at its last attempt, and why."""

    created_at: datetime
    topic: str
    status: str
    attempts: int
    error: str


@dataclass(frozen=True, slots=True)
class Served:
    """That relays serve the outbox, since when, and with how many lanes; 0 where they keep no order."""

    since: datetime
    lanes: int


@dataclass(frozen=True, slots=True)
class KeptLanes:
    """The lanes that an instance has, how often each has had another owner, and how many are its fair share."""

    lanes: list[int]
    epochs: list[int]
    share: int


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
    return SQL["insert_messages"].bind(object, **_columns(events))


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


def require_role(role: str) -> Statement[str]:
    return SQL["require_role"].bind(str, role=role)


def grant_writing(role: str) -> Statement[None]:
    return SQL["grant_writing"].compose(role=sql.Identifier(role))


def describe_table(oid: int) -> Statement[TableFacts]:
    return SQL["describe_table"].bind(TableFacts, oid=oid)


def describe_columns(oid: int) -> Statement[ColumnFacts]:
    return SQL["describe_columns"].bind(ColumnFacts, oid=oid)


def has_index_by_time(oid: int, column: str) -> Statement[bool]:
    return SQL["has_index_by_time"].bind(bool, oid=oid, column=column)


def insert_leased_and_commit(event: EncodedEvent, locked_by: str | None, lease_seconds: float | None) -> Statement[int]:
    """Returns when the row was written, in microseconds. Two statements: for a cursor that binds on the client's side."""
    return RELAY["insert_leased_and_commit"].bind(int, **_values(event, locked_by, lease_seconds))


def insert_leased(event: EncodedEvent, locked_by: str | None, lease_seconds: float | None) -> Statement[int]:
    """As above, without the commit."""
    return RELAY["insert_leased"].bind(int, **_values(event, locked_by, lease_seconds))


def insert_leased_many(events: Sequence[EncodedEvent], locked_by: str | None, lease_seconds: float | None) -> Statement[int]:
    """As above, one row each, in their order."""
    return RELAY["insert_leased_many"].bind(int, **_columns(events), locked_by=locked_by, lease_seconds=lease_seconds)


def claim_due(instance: str, lease: timedelta, after: tuple[int, str], limit: int) -> Statement[ClaimedMessage]:
    """`after` is a time in microseconds and an id."""
    return RELAY["claim_due"].bind(
        ClaimedMessage,
        instance=instance,
        lease_seconds=lease.total_seconds(),
        after_us=after[0],
        after_id=after[1],
        limit=limit,
    )


def save_published(ids: Sequence[str], created_us: Sequence[int], attempts: Sequence[int]) -> Statement[object]:
    return RELAY["save_published"].bind(
        object,
        ids=list(ids),
        created_us=list(created_us),
        attempts=list(attempts),
        first_us=min(created_us),
        last_us=max(created_us),
    )


def save_unpublished(  # noqa: PLR0913 - the columns of what is saved
    instance: str | None,
    ids: Sequence[str],
    created_us: Sequence[int],
    statuses: Sequence[str],
    attempts: Sequence[int],
    waits: Sequence[float | None],
    errors: Sequence[str | None],
) -> Statement[object]:
    return RELAY["save_unpublished"].bind(
        object,
        instance=instance,
        ids=list(ids),
        created_us=list(created_us),
        statuses=list(statuses),
        attempts=list(attempts),
        waits=list(waits),
        errors=list(errors),
        first_us=min(created_us),
        last_us=max(created_us),
    )


def measure_age() -> Statement[float]:
    """Seconds; no row if nothing waits."""
    return RELAY["measure_age"].bind(float)


def relay_state() -> Statement[RelayState]:
    return RELAY["relay_state"].bind(RelayState)


def find_failure() -> Statement[Failure]:
    """Of the newest row that failed; none if there is no such row."""
    return RELAY["find_failure"].bind(Failure)


def list_dead(limit: int, after: tuple[datetime, UUID] | None = None) -> Statement[DeadMessage]:
    """The oldest dead messages, after one of them by its time and id."""
    at, id_ = after if after is not None else (None, None)
    return RELAY["list_dead"].bind(DeadMessage, limit=limit, after_at=at, after_id=id_)


def revive_dead(ids: Sequence[UUID] | None = None) -> Statement[object]:
    """To be sent again: some dead messages, or all of them."""
    return RELAY["revive_dead"].bind(object, ids=None if ids is None else list(ids))


def lock_serving() -> Statement[str]:
    return RELAY["lock_serving"].bind(str)


def list_pipelines() -> Statement[str]:
    return RELAY["list_pipelines"].bind(str)


def identify_database() -> Statement[str]:
    """The same for all connections to a database, and for no other database."""
    return RELAY["identify_database"].bind(str)


def find_served() -> Statement[Served]:
    return RELAY["find_served"].bind(Served)


def set_served(lanes: int) -> Statement[object]:
    return RELAY["set_served"].bind(object, lanes=lanes)


def exclude_relays() -> Statement[str]:
    return RELAY["exclude_relays"].bind(str)


def limit_waiting(limit: timedelta) -> Statement[str]:
    """For locks, in this transaction."""
    return RELAY["limit_waiting"].bind(str, milliseconds=str(round(limit.total_seconds() * 1000)))


def list_relays() -> Statement[int]:
    return RELAY["list_relays"].bind(int)


def clear_served() -> Statement[object]:
    return RELAY["clear_served"].bind(object)


def skip_existing() -> Statement[object]:
    return RELAY["skip_existing"].bind(object)


def make_lanes(lanes: int) -> Statement[object]:
    return RELAY["make_lanes"].bind(object, lanes=lanes)


def remove_lanes() -> Statement[object]:
    return RELAY["remove_lanes"].bind(object)


def keep_lanes(instance: str, lease: timedelta) -> Statement[KeptLanes]:
    return RELAY["keep_lanes"].bind(KeptLanes, instance=instance, lease_seconds=lease.total_seconds())


def give_up_lanes(instance: str, lanes: Sequence[int]) -> Statement[object]:
    return RELAY["give_up_lanes"].bind(object, instance=instance, lanes=list(lanes))


def leave_lanes(instance: str) -> Statement[object]:
    return RELAY["leave_lanes"].bind(object, instance=instance)


def read_lanes(lanes: Sequence[int], count: int, limit: int) -> Statement[ClaimedMessage]:
    """Of some lanes, out of so many."""
    return RELAY["read_lanes"].bind(ClaimedMessage, lanes=list(lanes), count=count, limit=limit)


def prepare_session() -> Statement[str]:
    return RELAY["prepare_session"].bind(str)


def grant_relaying(role: str) -> Statement[None]:
    return RELAY["grant_relaying"].compose(role=sql.Identifier(role))


def _values(event: EncodedEvent, locked_by: str | None, lease_seconds: float | None) -> dict[str, object]:
    return {
        "id": event.id,
        "topic": event.topic,
        "type": event.type,
        "key": event.key,
        "payload": event.payload,
        "headers": event.headers,
        "locked_by": locked_by,
        "lease_seconds": lease_seconds,
    }


def _columns(events: Sequence[EncodedEvent]) -> dict[str, object]:
    return {
        "ids": [event.id for event in events],
        "topics": [event.topic for event in events],
        "types": [event.type for event in events],
        "keys": [event.key for event in events],
        "payloads": [event.payload for event in events],
        "headers": [event.headers for event in events],
    }
