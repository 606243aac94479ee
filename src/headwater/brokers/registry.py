"""The brokers that messages can be published to. A new one is a folder here, and a line in each of these."""

from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from headwater.brokers.base import Broker
from headwater.brokers.kafka.access import KafkaAccess
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.broker import NatsBroker, NatsBrokerSettings
from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.servicebus.access import ServiceBusAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsMessages:
    """A NATS server, and where messages go there."""

    access: NatsAccess
    settings: NatsBrokerSettings = field(default_factory=NatsBrokerSettings)


BrokerAccess: TypeAlias = NatsMessages | RabbitmqAccess | ServiceBusAccess | KafkaAccess


def open_broker(access: BrokerAccess) -> Broker:
    """The broker, which connects when it is first used. Each needs an extra of its own, and says so if that is missing."""
    match access:
        case NatsMessages():
            return NatsBroker(access.access, access.settings)
        case RabbitmqAccess():
            from headwater.brokers.rabbitmq.broker import RabbitmqBroker

            return RabbitmqBroker(access)
        case ServiceBusAccess():
            from headwater.brokers.servicebus.broker import ServiceBusBroker

            return ServiceBusBroker(access)
        case KafkaAccess():
            from headwater.brokers.kafka.broker import KafkaBroker

            return KafkaBroker(access)
        case _:
            assert_never(access)
