"""A message as the SDK wants it: broker properties, CloudEvents as application properties, and the user's headers."""

import sys
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headwater.brokers.base import cloud_event
from headwater.brokers.columns import instants
from headwater.brokers.servicebus.access import ServiceBusAccess
from headwater.model import Messages

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch

# The prefix of the AMQP protocol binding of CloudEvents.
_PREFIX = "cloudEvents:"


class Envelopes:
    """The messages of one call, each built when it is asked for, so that a large call is not in memory twice."""

    def __init__(self, access: ServiceBusAccess, messages: Messages) -> None:
        self._source, self._has_sessions = access.source, access.sessions
        self._ids, self._types, self._keys = (messages.column(name).to_pylist() for name in ("id", "type", "key"))
        self._payloads, self._content_types = messages.column("payload"), messages.column("content_type").to_pylist()
        self._headers, self._times = messages.column("headers"), instants(messages.column("created_at")).to_pylist()

    def fill(self, batch: "ServiceBusMessageBatch", places: npt.NDArray[np.int64]) -> tuple[int, str]:
        """Put messages into an empty batch until one does not fit: how many it has then, and why there is not one more."""
        from azure.servicebus.exceptions import MessageSizeExceededError

        count = 0
        for place in places.tolist():
            try:
                message = self._built(place)
                batch.add_message(message)
            except MessageSizeExceededError:
                return count, f"{_size(message)} bytes are more than the {batch.max_size_in_bytes} that a batch may have"
            except ValueError as exc:
                return count, f"Service Bus knows no such message: {exc}"
            count += 1
        return count, ""

    def _built(self, place: int) -> "ServiceBusMessage":
        """Raises ValueError where a property is longer than Service Bus allows."""
        from azure.servicebus import ServiceBusMessage

        id, type, key = self._ids[place], self._types[place], self._keys[place]
        event = cloud_event(id, self._source, type, self._times[place], key)
        return ServiceBusMessage(
            self._payloads[place].as_py(),
            application_properties={
                **dict(self._headers[place].as_py() or ()),
                **{_PREFIX + name: value for name, value in event.items()},
            },
            message_id=id,
            session_id=key if self._has_sessions else None,
            subject=type,
            content_type=self._content_types[place],
        )


def _size(message: "ServiceBusMessage") -> int:
    """The size of a message by itself, as the SDK counts it."""
    from azure.servicebus import ServiceBusMessageBatch

    roomy = ServiceBusMessageBatch(max_size_in_bytes=sys.maxsize)
    roomy.add_message(message)
    return roomy.size_in_bytes
