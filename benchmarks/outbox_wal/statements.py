"""The SQL of the parts: statements with their parameters and rows named."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg import sql

from headwater.postgres.statements import Statement, load

SQL: Final = load("benchmarks.outbox_wal")


@dataclass(frozen=True, slots=True)
class SenderState:
    reply_time: datetime | None
    retained: int


@dataclass(frozen=True, slots=True)
class Written:
    """A row of the outbox, with all that a message has."""

    id: str
    topic: str
    type: str
    key: str
    payload: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the outbox, as far as the reference reads it."""

    id: str
    created_at: datetime
    type: str
    payload: str


@dataclass(frozen=True, slots=True)
class Key:
    created_at: datetime
    id: str


def create_writer() -> Statement[None]:
    return SQL["create_writer"].compose()


def write_messages(first: int, last: int, per_transaction: int) -> Statement[int]:
    return SQL["write_messages"].bind(int, first=first, last=last, per_transaction=per_transaction)


def write_message(number: int) -> Statement[str]:
    return SQL["write_message"].bind(str, number=number)


def empty_outbox() -> Statement[None]:
    return SQL["empty_outbox"].compose()


def publish_inserts(publication: str) -> Statement[None]:
    return SQL["publish_inserts"].compose(publication=sql.Identifier(publication))


def create_slot(slot: str) -> Statement[bool]:
    return SQL["create_slot"].bind(bool, slot=slot)


def has_slot(slot: str) -> Statement[bool]:
    return SQL["has_slot"].bind(bool, slot=slot)


def drop_slot(slot: str) -> Statement[bool]:
    return SQL["drop_slot"].bind(bool, slot=slot)


def sender_state(slot: str) -> Statement[SenderState]:
    return SQL["sender_state"].bind(SenderState, slot=slot)


def read_messages(count: int) -> Statement[Written]:
    return SQL["read_messages"].bind(Written, count=count)


def read_as(snapshot: str) -> Statement[None]:
    return SQL["read_as"].compose(snapshot=sql.Literal(snapshot))


def declare_cursor(key: Key) -> Statement[None]:
    return SQL["declare_cursor"].compose(at=sql.Literal(key.created_at), id=sql.Literal(key.id))


def fetch_rows() -> Statement[Row]:
    return SQL["fetch_rows"].bind(Row)


def end_reading() -> Statement[None]:
    return SQL["end_reading"].compose()


def newest_key() -> Statement[Key]:
    return SQL["newest_key"].bind(Key)
