"""Azure Service Bus: the official SDK against the server of the tests, which proves our use of the SDK and not Azure."""

import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from urllib.parse import urlsplit

from headwater.brokers.servicebus import ServiceBusAccess, ServiceBusBroker
from tests.conformance.broker_contract import SOURCE, BrokerTarget, Kept
from tests.support.brokers.servicebus_server import ServiceBusDouble
from tests.support.brokers.servicebus_server.server import connection_string

_PREFIX = "cloudEvents:"


class ServiceBusTarget(BrokerTarget):
    name = "servicebus"
    checks_logins = False
    large_bytes = 200_000
    oversized_bytes = 300_000
    longest_key = 128
    server: ServiceBusDouble

    @classmethod
    def serving(cls) -> Iterator[ServiceBusDouble]:
        with ServiceBusDouble() as double:
            double.entities = set()
            yield double

    @property
    def secret(self) -> str:
        return self.server.key

    def broker(self, timeout: timedelta, *, secret: str | None = None) -> ServiceBusBroker:
        return ServiceBusBroker(self._access(timeout, secret or self.secret))

    def destination(self) -> str:
        assert self.server.entities is not None
        self.server.entities.add(topic := f"topic-{uuid.uuid4().hex}")
        return topic

    def stored(self, topic: str) -> list[Kept]:
        return [
            Kept(
                stored.id,
                stored.session,
                stored.subject,
                stored.body,
                stored.content_type,
                {name: value for name, value in stored.properties.items() if not name.startswith(_PREFIX)},
                {name.removeprefix(_PREFIX): value for name, value in stored.properties.items() if name.startswith(_PREFIX)},
            )
            for stored in self.server.messages(topic)
        ]

    def descriptions(self, broker: object) -> Sequence[str]:
        access = self._access(timedelta(seconds=1), self.secret)
        return [repr(broker), repr(access), access.describe()]

    def _access(self, timeout: timedelta, secret: str) -> ServiceBusAccess:
        text = connection_string(urlsplit(self.door.url).port or 0, secret)
        return ServiceBusAccess(connection_string=text, timeout=timeout, source=SOURCE)


TARGET = ServiceBusTarget
