"""An event as an application gives it, checked and encoded before any SQL is run. Pure.

What the server would refuse is refused here: an error of the server would take the application's transaction with it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn
from uuid import UUID

from headwater.errors import OutboxError
from headwater.outbox.ids import make_ids

# NATS and Kafka take no more than this unless they are told to.
MAX_PAYLOAD_BYTES: Final = 1024 * 1024
# What the column takes, and what names have room for in the headers of all brokers.
MAX_NAME_BYTES: Final = 255
# The server's parser gives up at some thousand levels, Python's at 1000 or later.
MAX_DEPTH: Final = 500

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, for whoever listens to `topic`.

    `payload` is a value that JSON can express, or JSON text as bytes, which is kept as it is. Events with the same `key`
    keep their order. Without an `id` it gets one.
    """

    topic: str
    type: str
    payload: object
    key: str | None = None
    headers: Mapping[str, str] | None = None
    id: UUID | None = None


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event as it is written: payload and headers are JSON texts."""

    id: UUID
    topic: str
    type: str
    key: str | None
    payload: str
    headers: str

    @property
    def is_ascii(self) -> bool:
        return all(text.isascii() for text in (self.topic, self.type, self.key or "", self.payload, self.headers))


def encode_events(events: Sequence[Event], trace: Mapping[str, str], max_bytes: int) -> list[EncodedEvent]:
    """Events as they are written, or OutboxError; `trace` are headers for all of them, under their own."""
    return [_encoded(event, id_, trace, max_bytes) for event, id_ in zip(events, make_ids(len(events)), strict=True)]


def encode_payload(payload: object, max_bytes: int = MAX_PAYLOAD_BYTES) -> str:
    """The JSON text of a payload."""
    text = _taken(payload) if isinstance(payload, bytes) else _dumped(payload)
    size = len(_in_utf8("payload", text))
    if size > max_bytes:
        raise OutboxError(
            f"the payload has {size} bytes of JSON; at most {max_bytes} are allowed; send less, or raise max_bytes"
        )
    # The first test is quick, and nearly always all that it takes.
    if "\\u0000" in text and _ESCAPED_NUL.search(text):
        raise OutboxError("the payload has a NUL character, which PostgreSQL cannot store as text; remove it")
    if _depth(text) > MAX_DEPTH:
        raise OutboxError(f"the payload is nested more than {MAX_DEPTH} levels deep; flatten it")
    return text


def _encoded(event: Event, id_: UUID, trace: Mapping[str, str], max_bytes: int) -> EncodedEvent:
    if event.id is not None and not isinstance(event.id, UUID):
        raise OutboxError(f"the id of an event is a {type(event.id).__name__}; give a uuid.UUID, or none to have one made")
    check_name("topic", event.topic)
    check_name("type", event.type)
    if event.key is not None:
        check_name("key", event.key)
    return EncodedEvent(
        id=event.id or id_,
        topic=event.topic,
        type=event.type,
        key=event.key,
        payload=encode_payload(event.payload, max_bytes),
        headers=_headers({**trace, **_checked(event.headers)}),
    )


def check_name(what: str, name: object) -> None:
    """Raise OutboxError unless a name can be one: some text of one line, and not too long."""
    if not isinstance(name, str):
        raise OutboxError(f"the {what} is a {type(name).__name__}; give a string")
    if not name:
        raise OutboxError(f"the {what} is empty; give it a name" if what != "key" else "the key is empty; leave it out")
    size = len(_check_text(what, name))
    if size > MAX_NAME_BYTES:
        raise OutboxError(f"the {what} has {size} bytes; at most {MAX_NAME_BYTES} are allowed")


def _check_text(what: str, text: str) -> bytes:
    if _CONTROL.search(text):
        raise OutboxError(f"the {what} {text[:40]!r} has a control character; remove it")
    return _in_utf8(what, text)


def _in_utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise OutboxError(f"the {what} has half of a surrogate pair, which is no character; remove it") from exc


def _checked(headers: Mapping[str, str] | None) -> Mapping[str, str]:
    for name, value in (headers or {}).items():
        check_name("name of a header", name)
        if not isinstance(value, str):
            raise OutboxError(f"header {name!r} is a {type(value).__name__}; give a string")
        _check_text(f"value of header {name!r}", value)
    return headers or {}


def _headers(headers: Mapping[str, str]) -> str:
    return _JSON.encode(headers) if headers else "{}"


def _dumped(payload: object) -> str:
    try:
        return _JSON.encode(payload)
    except (TypeError, ValueError, RecursionError) as exc:
        raise OutboxError(
            f"the payload cannot be written as JSON ({_said(exc)}); give dicts, lists, strings, finite numbers, booleans "
            "and None, or JSON text as bytes"
        ) from exc


def _taken(payload: bytes) -> str:
    """JSON text as it was given, if it is some."""
    try:
        text = payload.decode()
        value = json.loads(text, parse_constant=refuse_constant, parse_int=str, parse_float=str)
    except (ValueError, RecursionError) as exc:
        raise OutboxError(f"the payload is bytes, but no JSON text in UTF-8 ({_said(exc)}); correct it") from exc
    if _ESCAPED_SURROGATE.search(text):
        _in_utf8("payload", _dumped(value))
    return text


def refuse_constant(name: str) -> NoReturn:
    """For `json.loads`, which takes NaN and the infinities for JSON."""
    raise ValueError(f"{name} is no JSON")


def _said(error: Exception) -> str:
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def _depth(text: str) -> int:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for token in _TOKEN.findall(text):
        if token in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token in "]}":
            depth -= 1
    return deepest
