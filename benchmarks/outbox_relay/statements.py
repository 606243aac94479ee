"""The SQL of the parts: statements with their parameters and rows named."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from headwater.postgres.statements import Statement, load

SQL: Final = load("benchmarks.outbox_relay")


@dataclass(frozen=True, slots=True)
class Written:
    """A row of the outbox, with all that a message has."""

    id: str
    topic: str
    type: str
    payload: str
    created_at: datetime


def create_tables() -> Statement[None]:
    return SQL["create_tables"].compose()


def empty_tables() -> Statement[None]:
    return SQL["empty_tables"].compose()


def insert_entity(id: int, name: str) -> Statement[int]:
    return SQL["insert_entity"].bind(int, id=id, name=name)


def insert_bare_event(topic: str, type: str, payload: str) -> Statement[int]:
    return SQL["insert_bare_event"].bind(int, topic=topic, type=type, payload=payload)


def insert_reference_event(id: UUID, event_key: str, event_data: str) -> Statement[int]:
    return SQL["insert_reference_event"].bind(int, id=id, event_key=event_key, event_data=event_data)


def save_reference_published(ids: Sequence[UUID]) -> Statement[int]:
    return SQL["save_reference_published"].bind(int, ids=list(ids))


def save_reference_failed(ids: Sequence[UUID]) -> Statement[int]:
    return SQL["save_reference_failed"].bind(int, ids=list(ids))


def has_pending() -> Statement[bool]:
    return SQL["has_pending"].bind(bool)


def read_published() -> Statement[str]:
    return SQL["read_published"].bind(str)


def read_reference_published() -> Statement[str]:
    return SQL["read_reference_published"].bind(str)


def count_reference_unsettled() -> Statement[int]:
    return SQL["count_reference_unsettled"].bind(int)


def read_messages() -> Statement[Written]:
    return SQL["read_messages"].bind(Written)


def write_backlog(topic: str, type: str, name: str, events: int) -> Statement[int]:
    return SQL["write_backlog"].bind(int, topic=topic, type=type, name=name, events=events)
