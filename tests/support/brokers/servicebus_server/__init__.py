"""A small AMQP 1.0 server that stands in for Azure Service Bus: the official SDK talks to it over a real socket.

It proves how we use the SDK, and not how Azure behaves: it does what the frames of the SDK ask for, stores what comes, and
fails in the ways that a test asks for. What only the service itself can show, such as its throttling, is not here.
"""

from tests.support.brokers.servicebus_server.faults import (
    Accept,
    Delay,
    DropConnection,
    DropLink,
    Fault,
    NeverSettle,
    Reject,
)
from tests.support.brokers.servicebus_server.message import Stored
from tests.support.brokers.servicebus_server.server import ServiceBusDouble

__all__ = [
    "Accept",
    "Delay",
    "DropConnection",
    "DropLink",
    "Fault",
    "NeverSettle",
    "Reject",
    "ServiceBusDouble",
    "Stored",
]
