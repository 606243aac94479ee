"""What stories share: one RabbitMQ for all of them."""

from collections.abc import Iterator

import pytest

from tests.rabbitmq import RabbitmqNode, start_rabbitmq


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitmqNode]:
    yield from start_rabbitmq()
