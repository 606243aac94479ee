"""The SQL for those who look after topics: rights, and what the tables take."""

from dataclasses import dataclass
from typing import Final

from psycopg import sql

from headwater.postgres.statements import DEFAULT_SCHEMA, Statement, load

SQL: Final = load("headwater.topics", "sql/operate.sql")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a topic takes; `waiting` appends have no offsets yet."""

    id: int
    bytes: int
    segments: int
    groups: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Dead:
    """How many messages a group has put aside."""

    group_id: int
    letters: int


def grant_appending(role: str) -> Statement[None]:
    return SQL["grant_appending"].compose(role=sql.Identifier(role))


def grant_appending_to(topic_id: int, role: str) -> Statement[None]:
    return SQL["grant_appending_to"].compose(log=_log(topic_id), role=sql.Identifier(role))


def grant_reading(role: str) -> Statement[None]:
    return SQL["grant_reading"].compose(role=sql.Identifier(role))


def grant_reading_from(topic_id: int, role: str) -> Statement[None]:
    return SQL["grant_reading_from"].compose(log=_log(topic_id), role=sql.Identifier(role))


def measure_topics() -> Statement[Measured]:
    return SQL["measure_topics"].bind(Measured)


def count_dead() -> Statement[Dead]:
    return SQL["count_dead"].bind(Dead)


def _log(topic_id: int) -> sql.Identifier:
    return sql.Identifier(DEFAULT_SCHEMA, f"topic_log_{topic_id}")
