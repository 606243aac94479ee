"""A queue for each story, and a database with an outbox."""

from collections.abc import Iterator

import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.outbox.checkpoint import prepare_outbox
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.servers.embedded import fresh_database
from tests.support.stories.outbox_story import Queue


@pytest.fixture
def queue(rabbitmq: RabbitmqNode) -> Iterator[Queue]:
    with Queue(rabbitmq) as queue:
        yield queue


@pytest.fixture
def source(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        prepare_outbox(url)
        yield url
