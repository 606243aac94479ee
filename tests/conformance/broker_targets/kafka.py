"""Kafka: the real client against librdkafka's mock cluster, which speaks the protocol and knows no logins."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import KafkaError

from headwater.brokers.kafka import KafkaAccess, KafkaBroker
from tests.conformance.broker_contract import SOURCE, BrokerTarget, Kept
from tests.support.brokers.kafka_cluster import KafkaCluster

_PREFIX = "ce_"


class KafkaTarget(BrokerTarget):
    name = "kafka"
    oversized_bytes = 1_100_000
    has_logins = False
    # Without SASL it is of no use, and must be shown nowhere all the same.
    secret = "the-secret-password"
    server: KafkaCluster

    @classmethod
    def serving(cls) -> Iterator[KafkaCluster]:
        with KafkaCluster() as cluster:
            yield cluster

    @contextmanager
    def open(self) -> Iterator[None]:
        with super().open():
            # Clients go where a broker says it is, whatever led them to it.
            self.server.advertise(urlsplit(self.door.url).port or 0)
            yield

    def broker(self, timeout: timedelta, *, secret: str | None = None) -> KafkaBroker:
        return KafkaBroker(self._access(timeout))

    def destination(self) -> str:
        # One partition, so that what is stored has one order.
        self.server.create(topic := f"topic-{uuid.uuid4().hex}", partitions=1)
        return topic

    def nowhere(self) -> str:
        self.server.fail_topic(topic := super().nowhere(), KafkaError.UNKNOWN_TOPIC_OR_PART)
        return topic

    def stored(self, topic: str) -> list[Kept]:
        return [_kept(stored) for stored in self.server.messages(topic)]

    def descriptions(self, broker: object) -> Sequence[str]:
        access = self._access(timedelta(seconds=1))
        return [repr(broker), repr(access), access.describe()]

    def _access(self, timeout: timedelta) -> KafkaAccess:
        # A topic that the cluster does not know is given up soon; by default a third of the timeout.
        settings = {"sasl.password": self.secret, "topic.metadata.propagation.max.ms": "300"}
        servers = urlsplit(self.door.url).netloc
        return KafkaAccess(bootstrap_servers=servers, settings=settings, timeout=timeout, source=SOURCE)


def _kept(stored: Any) -> Kept:
    texts = {name: value.decode() for name, value in dict(stored.headers()).items()}
    event = {name.removeprefix(_PREFIX): text for name, text in texts.items() if name.startswith(_PREFIX)}
    content_type = texts.pop("content-type")
    others = {name: text for name, text in texts.items() if not name.startswith(_PREFIX)}
    key = stored.key()
    return Kept(event["id"], key and key.decode(), event["type"], stored.value(), content_type, others, event)


TARGET = KafkaTarget
