"""A stream of its own for each test, on the server that all share."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from headwater.brokers.nats import Link, NatsAccess, Publisher
from headwater.embedded import EmbeddedNats
from tests.support.brokers.nats_messages import Stream, fresh_stream


@pytest.fixture
def access(nats: EmbeddedNats) -> NatsAccess:
    return NatsAccess(url=nats.url, timeout=timedelta(seconds=10))


@pytest.fixture
def hasty(nats: EmbeddedNats) -> NatsAccess:
    """Gives up soon."""
    return NatsAccess(url=nats.url, timeout=timedelta(seconds=2))


@pytest.fixture
def link(access: NatsAccess) -> Iterator[Link]:
    with Link(access) as opened:
        yield opened


@pytest.fixture
def stream(access: NatsAccess) -> Iterator[Stream]:
    with fresh_stream(access) as made:
        yield made


@pytest.fixture
def publisher(access: NatsAccess) -> Iterator[Publisher]:
    with Publisher(access) as opened:
        yield opened
