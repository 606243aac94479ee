"""NATS JetStream: each topic has a stream of its own."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from urllib.parse import unquote, urlsplit

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.broker import NatsBroker, NatsBrokerSettings
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import ensure_stream
from headwater.embedded import EmbeddedNats
from tests.conformance.broker_contract import SOURCE, BrokerTarget, Kept
from tests.support.brokers.nats_streams import Stored, stored
from tests.support.servers.embedded import start_nats


class NatsTarget(BrokerTarget):
    name = "nats"
    # More than the server's max_payload.
    oversized_bytes = 1_100_000
    knows_duplicates = True
    server: EmbeddedNats

    @classmethod
    def serving(cls) -> Iterator[EmbeddedNats]:
        return start_nats()

    @property
    def secret(self) -> str:
        return urlsplit(self.server.url).password or ""

    def broker(self, timeout: timedelta, *, secret: str | None = None) -> NatsBroker:
        url = self.door.url if secret is None else self.door.url.replace(self.secret, secret)
        return NatsBroker(NatsAccess(url=url, timeout=timeout), NatsBrokerSettings(source=SOURCE))

    def destination(self) -> str:
        topic = f"T{uuid.uuid4().hex}"
        with closing(Link(self._direct)) as link:
            ensure_stream(link, topic, [topic], "a test's own")
        return topic

    def stored(self, topic: str) -> list[Kept]:
        return [_kept(one) for one in stored(self._direct, topic)]

    def descriptions(self, broker: object) -> Sequence[str]:
        return [repr(broker), repr(NatsAccess(url=self.door.url)), NatsAccess(url=self.door.url).describe()]

    @property
    def _direct(self) -> NatsAccess:
        return NatsAccess(url=self.server.url)


def _kept(one: Stored) -> Kept:
    headers = {name: unquote(value) for name, value in one.headers.items()}
    event = {name.removeprefix("ce-"): value for name, value in headers.items() if name.startswith("ce-")}
    return Kept(
        id=headers["Nats-Msg-Id"],
        key=event.get("partitionkey"),
        type=event["type"],
        payload=one.body,
        content_type=event.pop("datacontenttype"),
        headers={name: value for name, value in headers.items() if not name.startswith(("ce-", "Nats-"))},
        event=event,
    )


TARGET = NatsTarget
