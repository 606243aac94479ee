"""What a consumer remembers of messages, in the transaction of what it does with them: so each has its effect once."""

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg

from headwater.errors import OutboxError
from headwater.outbox import statements
from headwater.outbox.event import check_name
from headwater.outbox.transaction import AnyConnection, require_async, require_sync, require_transaction
from headwater.postgres.statements import Statement, execute, execute_sync, fetch, fetch_sync

__all__ = ["forget", "forget_sync", "once", "once_sync"]

# Short enough that nobody waits for it: 8 MiB of the table.
_PAGES: Final = 1024


async def once(connection: psycopg.AsyncConnection[Any], message_id: UUID | str, consumer: str) -> bool:
    """Whether a consumer gets this message for the first time; remembered if the connection's transaction commits.

    While another transaction deals with the same message, this waits for it to end: False if it has committed, True if it
    has not. In a transaction of isolation level repeatable read the former is a serialization failure.
    """
    require_async(connection, "once")
    return bool(await fetch(connection, _remember(connection, message_id, consumer)))


def once_sync(connection: psycopg.Connection[Any], message_id: UUID | str, consumer: str) -> bool:
    """`once` for a connection that is not async."""
    require_sync(connection, "once")
    return bool(fetch_sync(connection, _remember(connection, message_id, consumer)))


async def forget(connection: psycopg.AsyncConnection[Any], older_than: timedelta) -> int:
    """Forget messages that were received longer ago; returns how many.

    A message that comes again after that has its effect again. On a connection in autocommit mode it is done piece by
    piece, so that nothing is locked for long.
    """
    require_async(connection, "forget")
    (pages,) = await fetch(connection, statements.count_inbox_pages())
    return sum([await execute(connection, piece) for piece in _pieces(pages, older_than)])


def forget_sync(connection: psycopg.Connection[Any], older_than: timedelta) -> int:
    """`forget` for a connection that is not async."""
    require_sync(connection, "forget")
    (pages,) = fetch_sync(connection, statements.count_inbox_pages())
    return sum(execute_sync(connection, piece) for piece in _pieces(pages, older_than))


def _remember(connection: AnyConnection, message_id: UUID | str, consumer: str) -> Statement[bool]:
    require_transaction(connection, "remembering a message")
    if not isinstance(message_id, str | UUID):
        raise OutboxError(f"the id of a message is a str or a UUID, not {type(message_id).__name__}; decode it first")
    check_name("consumer", consumer)
    check_name("message id", str(message_id))
    return statements.remember_message(consumer, str(message_id))


def _pieces(pages: int, older_than: timedelta) -> list[Statement[object]]:
    if older_than < timedelta(0):
        raise OutboxError("messages cannot be forgotten before they come; give a time that is not negative")
    return [statements.forget_pages(first, first + _PAGES, older_than) for first in range(0, pages, _PAGES)]
