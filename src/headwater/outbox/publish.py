"""Writing events, inside of the application's own transaction: they are there if and only if it commits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import psycopg

from headwater.errors import OutboxError
from headwater.outbox import statements
from headwater.outbox.event import MAX_PAYLOAD_BYTES, EncodedEvent, Event, encode_events
from headwater.outbox.rights import granted
from headwater.outbox.transaction import AnyConnection, require_async, require_sync, require_transaction
from headwater.postgres.statements import execute, execute_sync
from headwater.traces import trace_headers

# One statement takes about as much; more of either makes it no quicker, and a message of the protocol has an end.
_CHUNK_EVENTS: Final = 1000
_CHUNK_CHARACTERS: Final = 8 * 1024 * 1024


async def publish(  # noqa: PLR0913 - the parts of an event, and by name what most events do without
    connection: psycopg.AsyncConnection[Any],
    topic: str,
    type: str,
    payload: object,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    id: UUID | None = None,
    max_bytes: int = MAX_PAYLOAD_BYTES,
) -> UUID:
    """Write an event in the connection's transaction and return its id, which is the id of the message at every broker.

    What cannot be written raises OutboxError before anything is sent, so that the transaction stays as it was.
    """
    require_async(connection, "publish")
    (event,) = prepare_events(connection, [Event(topic, type, payload, key, headers, id)], max_bytes)
    with granted(connection.info.user, "--grant"):
        await execute(connection, statements.insert_message(event))
    return event.id


def publish_sync(  # noqa: PLR0913 - as above
    connection: psycopg.Connection[Any],
    topic: str,
    type: str,
    payload: object,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    id: UUID | None = None,
    max_bytes: int = MAX_PAYLOAD_BYTES,
) -> UUID:
    """`publish` for a connection that is not async."""
    require_sync(connection, "publish")
    (event,) = prepare_events(connection, [Event(topic, type, payload, key, headers, id)], max_bytes)
    with granted(connection.info.user, "--grant"):
        execute_sync(connection, statements.insert_message(event))
    return event.id


async def publish_many(
    connection: psycopg.AsyncConnection[Any], events: Sequence[Event], *, max_bytes: int = MAX_PAYLOAD_BYTES
) -> list[UUID]:
    """Write events in their order, a thousand to a statement; all are checked before the first is sent."""
    require_async(connection, "publish_many")
    ready = prepare_events(connection, events, max_bytes)
    with granted(connection.info.user, "--grant"):
        for chunk in chunks(ready):
            await execute(connection, statements.insert_messages(chunk))
    return [event.id for event in ready]


def publish_many_sync(
    connection: psycopg.Connection[Any], events: Sequence[Event], *, max_bytes: int = MAX_PAYLOAD_BYTES
) -> list[UUID]:
    """`publish_many` for a connection that is not async."""
    require_sync(connection, "publish_many")
    ready = prepare_events(connection, events, max_bytes)
    with granted(connection.info.user, "--grant"):
        for chunk in chunks(ready):
            execute_sync(connection, statements.insert_messages(chunk))
    return [event.id for event in ready]


def prepare_events(connection: AnyConnection, events: Sequence[Event], max_bytes: int) -> list[EncodedEvent]:
    """The events as they are written; raises OutboxError if they, or the connection, are not fit for it."""
    require_transaction(connection, "publishing")
    ready = encode_events(events, trace_headers(), max_bytes)
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8" and not all(event.is_ascii for event in ready):
        raise OutboxError(
            f"the database is encoded in {encoding}, which may lack characters of the event; use one in UTF8, or ASCII only"
        )
    return ready


def chunks(events: Sequence[EncodedEvent]) -> Iterator[list[EncodedEvent]]:
    """Events in their order, cut so that each part is one statement of moderate size."""
    chunk: list[EncodedEvent] = []
    characters = 0
    for event in events:
        characters += len(event.payload) + len(event.headers)
        if chunk and (len(chunk) == _CHUNK_EVENTS or characters > _CHUNK_CHARACTERS):
            yield chunk
            chunk, characters = [], len(event.payload) + len(event.headers)
        chunk.append(event)
    if chunk:
        yield chunk
