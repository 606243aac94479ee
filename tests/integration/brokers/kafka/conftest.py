"""A cluster of its own for each test: it costs nothing to start, and failures stay where they belong."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from headwater.brokers.kafka import KafkaAccess, KafkaBroker
from tests.support.brokers.kafka_cluster import KafkaCluster


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as started:
        yield started


@pytest.fixture
def access(cluster: KafkaCluster) -> KafkaAccess:
    return KafkaAccess(bootstrap_servers=cluster.bootstrap_servers, timeout=timedelta(seconds=6))


@pytest.fixture
def hasty(cluster: KafkaCluster) -> KafkaAccess:
    """Gives up soon."""
    return KafkaAccess(bootstrap_servers=cluster.bootstrap_servers, timeout=timedelta(seconds=1.5))


@pytest.fixture
def broker(access: KafkaAccess) -> Iterator[KafkaBroker]:
    with KafkaBroker(access) as opened:
        yield opened
