"""A message as an application gives it, checked before any SQL is run, and as it comes back. Pure."""

import json
import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from headwater.errors import TopicError

# Also what a header's name may have. Keys are for order, not for content.
MAX_KEY_BYTES: Final = 1024
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Message(NamedTuple):
    """Messages of one key keep their order, in the partition that the key leads to.

    `payload` is bytes, kept as they are, or a value that JSON can express. What was read from a topic has its payload as
    bytes, and says where it stands there; `created_at` is when it got its offset. To append it elsewhere, make another one
    of its payload, key and headers. A tuple, since many are made: a frozen dataclass takes three times as long.
    """

    payload: object
    key: str | None = None
    headers: Mapping[str, str] | None = None
    partition: int | None = None
    offset: int | None = None
    created_at: datetime | None = None

    def json(self) -> object:
        """The payload as a value."""
        return json.loads(self.payload) if isinstance(self.payload, bytes | str) else self.payload


# What a message is written as: its payload, its key, its headers as JSON text, empty if it has none, and the bytes of these.
Fields: TypeAlias = tuple[bytes, bytes | None, bytes, int]


def encode_message(message: Message, max_bytes: int) -> Fields:
    """The message as it is written, or TopicError."""
    if not isinstance(message, Message):
        raise TopicError(f"a message is a headwater.topics.Message, not a {type(message).__name__}")
    if message.partition is not None or message.offset is not None or message.created_at is not None:
        raise _placed(message)
    payload = message.payload if isinstance(message.payload, bytes) else _dumped(message.payload)
    key = None if message.key is None else _key(message.key)
    headers = b"" if message.headers is None else _headers(message.headers)
    size = len(payload) + len(key or b"") + len(headers)
    if size > max_bytes:
        raise TopicError(
            f"the message has {size} bytes, and the topic takes at most {max_bytes}; send less, or create the topic "
            "with a larger max_bytes"
        )
    return payload, key, headers, size


def partition_of(key: bytes, partitions: int) -> int:
    """Where the messages of a key are: the CRC-32 of its UTF-8 modulo the number of partitions, which others can compute."""
    return zlib.crc32(key) % partitions


def _placed(message: Message) -> TopicError:
    """Its place would be ignored, and who gives one believes otherwise."""
    name = next(one for one in ("partition", "offset", "created_at") if getattr(message, one) is not None)
    return TopicError(
        f"the message has a place already, with its {name}, and the topic gives it a new one; append "
        "Message(message.payload, message.key, message.headers)"
    )


def _key(key: str) -> bytes:
    if not isinstance(key, str):
        raise TopicError(f"the key is a {type(key).__name__}; give a string, or none")
    encoded = _in_utf8("key", key)
    if len(encoded) > MAX_KEY_BYTES:
        raise TopicError(f"the key has {len(encoded)} bytes; at most {MAX_KEY_BYTES} are allowed")
    return encoded


def _headers(headers: Mapping[str, str]) -> bytes:
    if not isinstance(headers, Mapping):
        raise TopicError(f"the headers are a {type(headers).__name__}; give a dict of strings, or none")
    if not headers:
        return b""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TopicError(f"header {name!r} is not a string by name and value; give strings")
    return _in_utf8("headers", _JSON.encode(dict(headers)))


def _in_utf8(what: str, text: str) -> bytes:
    if "\0" in text:
        raise TopicError(f"the {what} has a NUL character, which PostgreSQL cannot store as text; remove it")
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise TopicError(f"the {what} has half of a surrogate pair, which is no character; remove it") from exc


def _dumped(payload: object) -> bytes:
    try:
        return _in_utf8("payload", _JSON.encode(payload))
    except (TypeError, ValueError, RecursionError) as exc:
        raise TopicError(
            f"the payload cannot be written as JSON ({exc}); give bytes, or dicts, lists, strings, finite numbers, booleans "
            "and None"
        ) from exc
