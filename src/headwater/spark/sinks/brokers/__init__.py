"""Message brokers as sinks: RabbitMQ, Azure Service Bus, Kafka, and NATS for messages that are no changes."""

from headwater.spark.sinks.brokers.sink import BrokerSink

__all__ = ["BrokerSink"]
