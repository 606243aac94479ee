"""The brokers that messages can be published to. A new one is a folder here, and a line in each of these."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias, assert_never

from headwater.brokers.base import Broker
from headwater.brokers.kafka.access import KafkaAccess
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.broker import NatsBroker, NatsBrokerSettings
from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.servicebus.access import ServiceBusAccess
from headwater.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsMessages:
    """A NATS server, and where messages go there."""

    access: NatsAccess
    settings: NatsBrokerSettings = field(default_factory=NatsBrokerSettings)

    @property
    def timeout(self) -> timedelta:
        return self.access.timeout

    def describe(self) -> str:
        """Where it is, for messages."""
        return self.access.describe()


BrokerAccess: TypeAlias = NatsMessages | RabbitmqAccess | ServiceBusAccess | KafkaAccess


def broker_from_url(text: str) -> BrokerAccess:
    """The broker that a URL or a connection string names, with all other settings as they are by default."""
    if text.lstrip().lower().startswith("endpoint="):
        return ServiceBusAccess(connection_string=text)
    scheme, _, rest = text.strip().partition("://")
    match scheme.lower():
        case "amqp" | "amqps":
            return RabbitmqAccess(url=text.strip())
        case "nats" | "tls":
            return NatsMessages(access=NatsAccess(url=text.strip()))
        case "kafka":
            return KafkaAccess(bootstrap_servers=rest.rstrip("/"))
    # The text may hold a password, so it is not repeated.
    raise SettingsError(
        "the broker is no url that is known; write amqp://, amqps://, nats://, tls://, kafka://host:9092 or the connection "
        "string of Service Bus, Endpoint=sb://..."
    )


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
