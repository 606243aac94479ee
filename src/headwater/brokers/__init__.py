"""The brokers that messages are published to. They know no capability; an access says where one is and how to get in."""

from headwater.brokers.kafka.access import KafkaAccess
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.broker import NatsBrokerSettings
from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.registry import BrokerAccess, NatsMessages, broker_from_url
from headwater.brokers.servicebus.access import ServiceBusAccess

__all__ = [
    "BrokerAccess",
    "KafkaAccess",
    "NatsAccess",
    "NatsBrokerSettings",
    "NatsMessages",
    "RabbitmqAccess",
    "ServiceBusAccess",
    "broker_from_url",
]
