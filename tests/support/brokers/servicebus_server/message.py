"""A message as the server stores it: the bytes that came, taken apart when a test looks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.support.brokers.servicebus_server.codec import Described, decode_all

# What the SDK writes as the format of a transfer that carries several messages.
BATCH_FORMAT = 0x80013700
_PROPERTIES, _APPLICATION_PROPERTIES, _DATA = 0x73, 0x74, 0x75
_MESSAGE_ID, _SUBJECT, _CONTENT_TYPE, _SESSION = 0, 3, 6, 10


@dataclass(frozen=True)
class Stored:
    """One message; `transfer` is the number of the transfer that brought it, the same for all of a batch."""

    entity: str
    transfer: int
    raw: bytes

    @cached_property
    def _sections(self) -> Mapping[int, Any]:
        sections: list[Described] = decode_all(memoryview(self.raw))
        return {section.code: section.value for section in sections}

    def _property(self, place: int) -> Any:
        properties = self._sections.get(_PROPERTIES, [])
        return properties[place] if place < len(properties) else None

    @property
    def id(self) -> str:
        return str(self._property(_MESSAGE_ID))

    @property
    def session(self) -> str | None:
        session: str | None = self._property(_SESSION)
        return session

    @property
    def subject(self) -> str:
        return str(self._property(_SUBJECT))

    @property
    def content_type(self) -> str:
        return str(self._property(_CONTENT_TYPE))

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._sections.get(_APPLICATION_PROPERTIES, {}))

    @property
    def body(self) -> bytes:
        return bytes(self._sections[_DATA])


def unpacked(entity: str, transfer: int, message_format: int, payload: bytes) -> Iterator[Stored]:
    """The messages of a transfer."""
    if message_format != BATCH_FORMAT:
        yield Stored(entity, transfer, payload)
        return
    for section in decode_all(memoryview(payload)):
        if section.code == _DATA:
            yield Stored(entity, transfer, section.value)
