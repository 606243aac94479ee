"""RabbitMQ: messages published in bulk over pika's connection, each confirmed by the broker before the call returns."""

from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.rabbitmq.broker import RabbitmqBroker

__all__ = ["RabbitmqAccess", "RabbitmqBroker"]
