"""A message as a record of Kafka: its key, its value, and CloudEvents and the user's headers as headers."""

from collections.abc import Iterator
from dataclasses import dataclass

from headwater.brokers.base import cloud_event, destinations
from headwater.brokers.columns import instants
from headwater.brokers.kafka.access import KafkaAccess
from headwater.model import Messages

# The prefix of the Kafka protocol binding of CloudEvents, whose content type has a header without it.
_PREFIX = "ce_"
_CONTENT_TYPE = "content-type"
# Enough at a time that the cost of a slice is nothing, and few enough that a large call is not in memory twice.
_SLICE = 5000


@dataclass(frozen=True, slots=True)
class Record:
    """What a producer is given for one message, and the message's place in the call."""

    place: int
    topic: str
    key: str | None
    value: bytes
    headers: list[tuple[str, str | bytes | None]]


def records(access: KafkaAccess, messages: Messages, start: int) -> Iterator[Record]:
    """The messages of a call, from a place on."""
    for at in range(start, len(messages), _SLICE):
        yield from _slice(access, Messages(messages.rows.slice(at, _SLICE)), at)


def _slice(access: KafkaAccess, messages: Messages, start: int) -> Iterator[Record]:
    topics, times = destinations(access.topic, messages).to_pylist(), instants(messages.column("created_at")).to_pylist()
    names = ("id", "type", "key", "payload", "content_type", "headers")
    rows = zip(topics, times, *(messages.column(name).to_pylist() for name in names), strict=True)
    for place, (topic, time, id, type, key, payload, content_type, headers) in enumerate(rows, start):
        event = cloud_event(id, access.source, type, time, key)
        own = {_CONTENT_TYPE: content_type, **{_PREFIX + name: value for name, value in event.items()}}
        # A header of the user's says nothing else under a name of ours.
        others = ((name, value) for name, value in headers or () if name not in own)
        yield Record(place, topic, key, payload, [*own.items(), *others])
