"""Queues of a test's own, and brokers that write to them."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta

import pytest

from headwater.brokers.rabbitmq import RabbitmqAccess, RabbitmqBroker


@pytest.fixture
def queue(rabbitmq) -> Callable[..., str]:
    """Makes a durable queue and gives its name."""

    def declare(**arguments: object) -> str:
        name = f"q-{uuid.uuid4().hex}"
        with rabbitmq.channel() as channel:
            channel.queue_declare(name, durable=True, arguments={key.replace("_", "-"): arguments[key] for key in arguments})
        return name

    return declare


@pytest.fixture
def open_broker(rabbitmq) -> Iterator[Callable[..., RabbitmqBroker]]:
    """Opens brokers, which are closed at the end; they give up after some seconds unless told otherwise."""
    with ExitStack() as stack:

        def opened(**settings: object) -> RabbitmqBroker:
            given = {"url": rabbitmq.url, "timeout": timedelta(seconds=10), **settings}
            return stack.enter_context(closing(RabbitmqBroker(RabbitmqAccess(**given))))

        yield opened


@pytest.fixture
def held(rabbitmq) -> Callable[[str], list[bytes]]:
    """The payloads in a queue, which are taken out."""

    def take(queue: str) -> list[bytes]:
        found = []
        with rabbitmq.channel() as channel:
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(got[2])
        return found

    return take
