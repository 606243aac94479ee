"""Kafka by confluent-kafka: an idempotent producer, and messages that are durable on all replicas in sync."""

from headwater.brokers.kafka.access import KafkaAccess
from headwater.brokers.kafka.broker import KafkaBroker

__all__ = ["KafkaAccess", "KafkaBroker"]
