"""Azure Service Bus by its official SDK: batches by session, durable when they are settled."""

from headwater.brokers.servicebus.access import ServiceBusAccess
from headwater.brokers.servicebus.broker import ServiceBusBroker

__all__ = ["ServiceBusAccess", "ServiceBusBroker"]
