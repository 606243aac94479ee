"""A server of its own for each test: it costs nothing to start, and faults stay where they belong."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from headwater.brokers.servicebus import ServiceBusAccess, ServiceBusBroker
from tests.support.brokers.servicebus_server import ServiceBusDouble


@pytest.fixture
def double() -> Iterator[ServiceBusDouble]:
    with ServiceBusDouble() as server:
        yield server


@pytest.fixture
def access(double: ServiceBusDouble) -> ServiceBusAccess:
    return ServiceBusAccess(connection_string=double.connection_string, timeout=timedelta(seconds=4.5))


@pytest.fixture
def hasty(double: ServiceBusDouble) -> ServiceBusAccess:
    """Gives up soon."""
    return ServiceBusAccess(connection_string=double.connection_string, timeout=timedelta(seconds=1.5))


@pytest.fixture
def broker(access: ServiceBusAccess) -> Iterator[ServiceBusBroker]:
    with ServiceBusBroker(access) as opened:
        yield opened
