"""Messages as lines: JSON for programs, words for people, and JSON read back. Pure."""

import json
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from headwater.cli.lines import clock, printable, shortened
from headwater.errors import TopicError
from headwater.topics import Message

# Of a payload on a terminal: some lines of it.
_PAYLOAD_CHARACTERS: Final = 400
_PAYLOADS: Final = ("payload", "payload_text", "payload_base64")
_FIELDS: Final = {"key", "headers", *_PAYLOADS}
# What `read` writes beside them, and has no meaning for `append`.
_PLACES: Final = {"partition", "offset", "created_at"}


def json_line(message: Message) -> str:
    """One JSON object; the payload is a value if it is JSON, else text, else Base64."""
    place = {
        "partition": message.partition,
        "offset": message.offset,
        "created_at": None if message.created_at is None else message.created_at.isoformat(),
        "key": message.key,
        "headers": dict(message.headers or {}),
    }
    return f"{json.dumps(place, ensure_ascii=False)[:-1]}, {_payload_fragment(message.payload)}}}"


def text_line(message: Message) -> str:
    """Time, place, key, and what is in it."""
    assert isinstance(message.payload, bytes)
    payload = message.payload.decode(errors="backslashreplace")
    headers = "".join(f"  {name}={value}" for name, value in (message.headers or {}).items())
    key = "" if message.key is None else f"  {message.key}"
    place = f"{message.partition}:{message.offset}"
    return (
        f"{clock(message.created_at)}  {place:10}{printable(f'{key}  {shortened(payload, _PAYLOAD_CHARACTERS)}{headers}')}"
    )


def plain_message(line: bytes, key: str | None, headers: Mapping[str, str]) -> Message:
    """A line is a payload."""
    return Message(line, key, headers)


def json_message(line: bytes, key: str | None, headers: Mapping[str, str]) -> Message:
    """A line is an object, as `json_line` writes it; key and headers are for one that has none."""
    try:
        given = json.loads(line, parse_constant=_refuse)
    except ValueError as exc:
        raise TopicError(f"the line is no JSON ({exc}); write an object with a payload, and key and headers if any") from exc
    if not isinstance(given, dict):
        raise TopicError('the line is JSON, but no object; write it as {"payload": ...}')
    if unknown := sorted(given.keys() - _FIELDS - _PLACES):
        raise TopicError(f"a message has no {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
    own = given.get("headers") or {}
    if not isinstance(own, dict):
        raise TopicError('headers are an object with strings; write them as {"name": "value"}')
    return Message(_payload(given), key if given.get("key") is None else given["key"], {**headers, **own})


def plain_payload(payload: bytes) -> dict[str, Any]:
    """The payload under the name of what it is: a value, text, or Base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(payload).decode()}
    try:
        return {"payload": json.loads(text, parse_constant=_refuse)}
    except (ValueError, RecursionError):
        return {"payload_text": text}


def _payload_fragment(payload: object) -> str:
    assert isinstance(payload, bytes)
    ((name, value),) = plain_payload(payload).items()
    # As it was written, digits of numbers included, unless it has several lines.
    is_line = name == "payload" and b"\n" not in payload and b"\r" not in payload
    return f'"{name}": {payload.decode().strip() if is_line else json.dumps(value, ensure_ascii=False)}'


def _payload(given: dict[str, Any]) -> object:
    if len(names := [name for name in _PAYLOADS if name in given]) != 1:
        raise TopicError(f"a message has one of {', '.join(_PAYLOADS)}; this one has {' and '.join(names) or 'none'}")
    value = given[names[0]]
    if names[0] == "payload":
        return value
    if not isinstance(value, str):
        raise TopicError(f"{names[0]} is a string, not {json.dumps(value)}")
    if names[0] == "payload_text":
        return value.encode()
    try:
        return b64decode(value, validate=True)
    except Error as exc:
        raise TopicError(f"payload_base64 is no Base64 ({exc}); correct it") from exc


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
