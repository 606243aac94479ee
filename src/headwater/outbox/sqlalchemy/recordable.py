"""What can be recorded: events, functions that make them, and entities that are asked for theirs."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, runtime_checkable
from uuid import UUID

from headwater.errors import OutboxError
from headwater.outbox.event import MAX_PAYLOAD_BYTES, EncodedEvent, Event, encode_events
from headwater.outbox.relay.tracing import publish_span
from headwater.traces import trace_headers

# An event, or what makes it when it is written: by then the database has given keys and defaults to new entities.
Recordable: TypeAlias = "Event | Callable[[], Event]"


@runtime_checkable
class CollectsEvents(Protocol):
    """An entity with a bookkeeping of its own: it is asked for its events before each flush, commit and savepoint."""

    def collect_events(self) -> Iterable[Event]:
        """The events since the last call; the entity forgets them."""


@dataclass(frozen=True, slots=True)
class Made:
    """An event as it was recorded, and when.

    It is encoded then, so that a bad one fails there, and harms nothing; unless a function is to make it.
    """

    at: int
    event: Recordable
    encoded: EncodedEvent | None

    @classmethod
    def of(cls, event: Recordable) -> "Made":
        if isinstance(event, Event):
            return cls(time.monotonic_ns(), event, _encode(event))
        if not callable(event):
            raise OutboxError(f"an Event, or a function that makes one, is recorded, and not a {type(event).__name__}")
        return cls(time.monotonic_ns(), event, None)

    def made(self) -> Event:
        event = self.event if isinstance(self.event, Event) else self.event()
        if not isinstance(event, Event):
            raise OutboxError(f"a function that was recorded has to return an Event, and returned a {type(event).__name__}")
        return event

    def ready(self, id_: UUID) -> EncodedEvent:
        """To be written, under an id of ours if it has none of its own."""
        event = self.made()
        return replace(self.encoded or _encode(event), id=event.id or id_)


def _encode(event: Event) -> EncodedEvent:
    """With the trace of whoever records it."""
    with publish_span([event]):
        return encode_events([event], trace_headers(), MAX_PAYLOAD_BYTES)[0]
