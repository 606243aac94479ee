"""Topics: making them, and finding them by name."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg

from headwater.errors import SchemaError, TopicError
from headwater.model.amount import parse_duration
from headwater.postgres.caller import async_fault, sync_fault
from headwater.postgres.connect import Connection
from headwater.postgres.migrate import Component, migrate, pending_migrations
from headwater.postgres.statements import Statement, fetch, fetch_sync
from headwater.topics import statements
from headwater.topics.statements import TopicRow

# As Kafka's, and what one message of PostgreSQL's protocol carries with ease.
MAX_BYTES: Final = 1024 * 1024
# More would be more than one row can hold.
_MOST_BYTES: Final = 256 * 1024 * 1024
_MOST_PARTITIONS: Final = 1024
# Of a topic, and of a group.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class Topic:
    """What is fixed for a topic."""

    id: int
    name: str
    partitions: int
    compresses: bool
    retention: timedelta | None
    retention_bytes: int | None
    max_bytes: int
    created_at: datetime


def prepare_topics(connection: Connection) -> None:
    """Make Headwater's tables for topics in a database, or bring them to the version of this release."""
    migrate(connection, Component.of("headwater.topics"))


def require_topics(connection: Connection) -> None:
    """Raise SchemaError if the database does not have them."""
    if pending_migrations(connection, Component.of("headwater.topics")):
        raise no_topics()


def no_topics() -> SchemaError:
    return SchemaError("this database has no topics, or those of an earlier release; run `headwater topics init` first")


async def create(  # noqa: PLR0913 - what a topic is made of, and by name what most do without
    connection: psycopg.AsyncConnection[Any],
    name: str,
    *,
    partitions: int = 1,
    retention: timedelta | str | None = None,
    retention_bytes: int | None = None,
    compression: str = "none",
    max_bytes: int = MAX_BYTES,
) -> Topic:
    """Make a topic, in the transaction of the caller if there is one; raises TopicError if it is there already."""
    require_async(connection, "create")
    creation = _creation(name, partitions, retention, retention_bytes, compression, max_bytes)
    _refuse_existing(partitions, await fetch(connection, statements.find_topics(name)))
    with _refused(name):
        await fetch(connection, creation)
    return await find(connection, name)


def create_sync(  # noqa: PLR0913 - as above
    connection: psycopg.Connection[Any],
    name: str,
    *,
    partitions: int = 1,
    retention: timedelta | str | None = None,
    retention_bytes: int | None = None,
    compression: str = "none",
    max_bytes: int = MAX_BYTES,
) -> Topic:
    """`create` for a connection that is not async."""
    require_sync(connection, "create")
    creation = _creation(name, partitions, retention, retention_bytes, compression, max_bytes)
    _refuse_existing(partitions, fetch_sync(connection, statements.find_topics(name)))
    with _refused(name):
        fetch_sync(connection, creation)
    return find_sync(connection, name)


async def add_partitions(connection: psycopg.AsyncConnection[Any], name: str, partitions: int) -> Topic:
    """Give a topic more partitions; it has so many then.

    **Keys move.** Most keys lead to another partition than before, so that the order of a key holds among the messages
    before and among those after, not between them: a reader may get the newer ones first. Whoever needs the order lets the
    groups read up, with nobody appending, before. Producers that are open follow with their next batch but one; a `Topic`
    that somebody keeps has to be found again. Fewer partitions are refused.
    """
    require_async(connection, "add_partitions")
    found = await find(connection, name)
    await fetch(connection, _growth(found, partitions))
    return await find(connection, name)


def add_partitions_sync(connection: psycopg.Connection[Any], name: str, partitions: int) -> Topic:
    """`add_partitions` for a connection that is not async."""
    require_sync(connection, "add_partitions")
    found = find_sync(connection, name)
    fetch_sync(connection, _growth(found, partitions))
    return find_sync(connection, name)


async def find(connection: psycopg.AsyncConnection[Any], name: str) -> Topic:
    """The topic of a name; raises TopicError if there is none."""
    require_async(connection, "find")
    return _found(name, await fetch(connection, _sought(name)))


def find_sync(connection: psycopg.Connection[Any], name: str) -> Topic:
    """`find` for a connection that is not async."""
    require_sync(connection, "find")
    return _found(name, fetch_sync(connection, _sought(name)))


async def list_topics(connection: psycopg.AsyncConnection[Any]) -> list[Topic]:
    require_async(connection, "list_topics")
    return [_topic(row) for row in await fetch(connection, statements.find_topics())]


def list_topics_sync(connection: psycopg.Connection[Any]) -> list[Topic]:
    """`list_topics` for a connection that is not async."""
    require_sync(connection, "list_topics")
    return [_topic(row) for row in fetch_sync(connection, statements.find_topics())]


def require_async(connection: object, function: str) -> None:
    """Raise TopicError if a connection is none that an async function can use."""
    if fault := async_fault(connection, function):
        raise TopicError(fault)


def require_sync(connection: object, function: str) -> None:
    """Raise TopicError if a connection is none that the sync partner of a function can use."""
    if fault := sync_fault(connection, function):
        raise TopicError(fault)


def _sought(name: str) -> Statement[TopicRow]:
    """By its name, never without one: that would be all topics."""
    if not isinstance(name, str):
        raise TopicError(f"a topic is named by a string, not by {name!r}; give its name")
    return statements.find_topics(name)


def _refuse_existing(partitions: int, rows: list[TopicRow]) -> None:
    """Before the server does, whose error would take the caller's transaction with it."""
    for row in rows:
        if row.partitions != partitions:
            raise TopicError(
                f"topic {row.name!r} is there already, with {row.partitions} partitions and not {partitions}; use it as it "
                f"is, or give it more with `headwater topics add-partitions {row.name}`, by which keys move to others"
            )
        raise TopicError(f"topic {row.name!r} is there already; use it, or choose another name")


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """For the one of two who make a topic at the same time that was slower."""
    try:
        yield
    except psycopg.errors.UniqueViolation as exc:
        raise TopicError(f"topic {name!r} is there already, since a moment ago; use it, or choose another name") from exc


def _growth(topic: Topic, partitions: int) -> Statement[int]:
    if not topic.partitions <= partitions <= _MOST_PARTITIONS:
        raise TopicError(
            f"topic {topic.name!r} has {topic.partitions} partitions and cannot have {partitions}; give a number from there "
            f"to {_MOST_PARTITIONS}, for fewer make another topic and append to that"
        )
    return statements.add_partitions(topic.id, partitions)


def _found(name: str, rows: list[TopicRow]) -> Topic:
    if not rows:
        raise TopicError(f"there is no topic {name!r}; make it with `headwater topics create {name}`, or correct its name")
    return _topic(rows[0])


def _topic(row: TopicRow) -> Topic:
    retention = None if row.retention_seconds is None else timedelta(seconds=row.retention_seconds)
    return Topic(
        row.id,
        row.name,
        row.partitions,
        row.compression == "zstd",
        retention,
        row.retention_bytes,
        row.max_bytes,
        row.created_at,
    )


def _creation(  # noqa: PLR0913 - as above
    name: str,
    partitions: int,
    retention: timedelta | str | None,
    retention_bytes: int | None,
    compression: str,
    max_bytes: int,
) -> Statement[int]:
    """The statement, or TopicError: an error of the server would take the caller's transaction with it."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise TopicError(
            f"{name!r} cannot be the name of a topic; use up to 200 letters, digits, dots, dashes and underscores, and "
            "begin with a letter or a digit"
        )
    _refuse_others(partitions=partitions, max_bytes=max_bytes)
    if retention_bytes is not None:
        _refuse_others(retention_bytes=retention_bytes)
    if not 1 <= partitions <= _MOST_PARTITIONS:
        raise TopicError(f"a topic has 1 to {_MOST_PARTITIONS} partitions, not {partitions}")
    if compression not in ("none", "zstd"):
        raise TopicError(f"compression is none or zstd, not {compression!r}")
    if not 1 <= max_bytes <= _MOST_BYTES:
        raise TopicError(f"max_bytes of a message is 1 to {_MOST_BYTES}, not {max_bytes}")
    if retention_bytes is not None and retention_bytes < 1:
        raise TopicError(f"retention_bytes is more than 0, not {retention_bytes}; leave it out to keep everything")
    kept = _kept(retention)
    return statements.create_topic(
        name, partitions, compression, None if kept is None else kept.total_seconds(), retention_bytes, max_bytes
    )


def _refuse_others(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool):
            raise TopicError(f"{name} is a whole number, not {count!r}; give an int")


def _kept(retention: timedelta | str | None) -> timedelta | None:
    if isinstance(retention, str):
        try:
            retention = parse_duration(retention)
        except ValueError as exc:
            raise TopicError(f"retention {retention!r} {exc}") from exc
    if retention is not None and not isinstance(retention, timedelta):
        raise TopicError(f"retention is a timedelta, or a text such as '7 days', not {retention!r}; give one of these")
    if retention is not None and retention <= timedelta(0):
        raise TopicError(f"retention is a time that is more than 0, not {retention}; leave it out to keep everything")
    return retention
