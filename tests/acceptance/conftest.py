"""What stories share: one RabbitMQ for all of them, a queue there for each, and a database with an outbox."""

from collections.abc import Iterator

import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.outbox.checkpoint import prepare_outbox
from tests.outbox import Queue
from tests.rabbitmq import RabbitmqNode, start_rabbitmq
from tests.servers import fresh_database


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitmqNode]:
    yield from start_rabbitmq()


@pytest.fixture
def queue(rabbitmq: RabbitmqNode) -> Iterator[Queue]:
    with Queue(rabbitmq) as queue:
        yield queue


@pytest.fixture
def source(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        prepare_outbox(url)
        yield url
