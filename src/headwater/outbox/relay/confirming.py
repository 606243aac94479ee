"""A broker's access with the relay's own time for confirms: what is under way has to be settled within its lease."""

from dataclasses import replace
from datetime import timedelta
from typing import assert_never

from headwater.brokers.kafka.access import KafkaAccess
from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.registry import BrokerAccess, NatsMessages
from headwater.brokers.servicebus.access import ServiceBusAccess


def with_timeout(access: BrokerAccess, timeout: timedelta) -> BrokerAccess:
    """The same broker, which waits no longer than that; a shorter time of its own stays."""
    match access:
        case NatsMessages():
            inner = access.access
            return replace(access, access=replace(inner, timeout=min(inner.timeout, timeout)))
        case RabbitmqAccess() | ServiceBusAccess() | KafkaAccess():
            return replace(access, timeout=min(access.timeout, timeout))
        case _:
            assert_never(access)
