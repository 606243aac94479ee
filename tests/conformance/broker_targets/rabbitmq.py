"""RabbitMQ: each topic is a durable queue of its own."""

import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta

from headwater.brokers.rabbitmq import RabbitmqAccess, RabbitmqBroker
from tests.conformance.broker_contract import SOURCE, BrokerTarget, Kept
from tests.support.brokers.rabbitmq_node import MAX_MESSAGE_BYTES, RabbitmqNode, start_rabbitmq

_PREFIX = "cloudEvents:"


class RabbitmqTarget(BrokerTarget):
    name = "rabbitmq"
    oversized_bytes = MAX_MESSAGE_BYTES + 1
    server: RabbitmqNode

    @classmethod
    def serving(cls) -> Iterator[RabbitmqNode]:
        return start_rabbitmq()

    @property
    def secret(self) -> str:
        return self.server.password

    def broker(self, timeout: timedelta, *, secret: str | None = None) -> RabbitmqBroker:
        return RabbitmqBroker(self._access(timeout, secret or self.secret))

    def destination(self) -> str:
        topic = f"T{uuid.uuid4().hex}"
        with self.server.channel() as channel:
            channel.queue_declare(topic, durable=True)
        return topic

    def stored(self, topic: str) -> list[Kept]:
        found = []
        with self.server.channel() as channel:
            waiting = channel.queue_declare(topic, passive=True).method.message_count
            for _, properties, payload in channel.consume(topic, auto_ack=True) if waiting else ():
                headers = properties.headers
                event = {name.removeprefix(_PREFIX): text for name, text in headers.items() if name.startswith(_PREFIX)}
                kept = Kept(
                    id=properties.message_id,
                    key=event.get("partitionkey"),
                    type=properties.type,
                    payload=payload,
                    content_type=properties.content_type,
                    headers={name: text for name, text in headers.items() if not name.startswith(_PREFIX)},
                    event=event,
                )
                assert properties.delivery_mode == 2
                found.append(kept)
                if len(found) == waiting:
                    break
            channel.cancel()
        return found

    def descriptions(self, broker: object) -> Sequence[str]:
        access = self._access(timedelta(seconds=1), self.secret)
        return [repr(broker), repr(access), repr(access.server), access.describe()]

    def _access(self, timeout: timedelta, secret: str) -> RabbitmqAccess:
        return RabbitmqAccess(url=self.door.url.replace(self.secret, secret), timeout=timeout, source=SOURCE)


TARGET = RabbitmqTarget
