"""An outbox without a table: events go into the WAL alone, as logical messages of the application's transaction.

Nothing is stored and nothing has to be removed; but what a lost slot had not delivered is lost with it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg

from headwater.errors import DecodeError
from headwater.outbox import statements
from headwater.outbox.event import MAX_PAYLOAD_BYTES, EncodedEvent, Event, refuse_constant
from headwater.outbox.publish import prepare_events
from headwater.outbox.transaction import require_async, require_sync
from headwater.postgres.statements import fetch, fetch_sync

# By this prefix a reader of the WAL knows which messages are events.
PREFIX: Final = "headwater.outbox"

# What stands before the name of a member.
_MEMBER = re.compile(r'[ \t\n\r,]*(?=")')


@dataclass(frozen=True, slots=True)
class Emitted:
    """An event from the WAL; one that was written in SQL by hand may have no id. Its time is that of the commit."""

    id: str | None
    topic: str
    type: str
    key: str | None
    payload: bytes
    headers: Mapping[str, str]


async def emit(  # noqa: PLR0913 - the parts of an event, and by name what most events do without
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
    """As `publish`, into the WAL instead of a table."""
    require_async(connection, "emit")
    (event,) = prepare_events(connection, [Event(topic, type, payload, key, headers, id)], max_bytes)
    await fetch(connection, statements.emit_message(PREFIX, encode_emitted(event)))
    return event.id


def emit_sync(  # noqa: PLR0913 - as above
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
    """`emit` for a connection that is not async."""
    require_sync(connection, "emit")
    (event,) = prepare_events(connection, [Event(topic, type, payload, key, headers, id)], max_bytes)
    fetch_sync(connection, statements.emit_message(PREFIX, encode_emitted(event)))
    return event.id


def encode_emitted(event: EncodedEvent) -> str:
    """The content of a logical message: a JSON object with the payload in it as it is."""
    head = json.dumps({"id": str(event.id), "topic": event.topic, "type": event.type, "key": event.key}, ensure_ascii=False)
    return f'{head[:-1]}, "headers": {event.headers}, "payload": {event.payload}}}'


def decode_emitted(content: bytes) -> Emitted:
    """The event in the content of a logical message, its payload as it was written; raises DecodeError if there is none."""
    try:
        text = content.decode()
        event = json.loads(text, parse_constant=refuse_constant)
        payload = _written(text).get("payload") if isinstance(event, dict) else None
    except (ValueError, RecursionError) as exc:
        raise _malformed("it is no JSON") from exc
    if payload is None:
        raise _malformed("it is no object with a payload")
    headers = event.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise _malformed("its headers are no object of strings")
    for name in ("topic", "type"):
        if not isinstance(event.get(name), str) or not event[name]:
            raise _malformed(f"it has no {name}")
    for name in ("id", "key"):
        if not isinstance(event.get(name), str | None):
            raise _malformed(f"its {name} is no string")
    return Emitted(event.get("id") or None, event["topic"], event["type"], event.get("key"), payload.encode(), headers)


def _written(text: str) -> dict[str, str]:
    """The members of a JSON object, which it is known to be, each as it is written."""
    decoder, members = json.JSONDecoder(), {}
    place = text.index("{") + 1
    while found := _MEMBER.match(text, place):
        name, after = decoder.raw_decode(text, found.end())
        start = _skip(text, text.index(":", after) + 1)
        _, place = decoder.raw_decode(text, start)
        members[str(name)] = text[start:place]
    return members


def _skip(text: str, place: int) -> int:
    while text[place] in " \t\n\r":
        place += 1
    return place


def _malformed(reason: str) -> DecodeError:
    return DecodeError(f"an event that was emitted into the WAL cannot be read: {reason}", message_type="M")
