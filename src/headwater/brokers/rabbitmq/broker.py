"""RabbitMQ as a broker: messages as columns in, each confirmed or refused when the call returns."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from headwater.brokers.base import Offered, Published
from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.rabbitmq.envelope import envelop
from headwater.brokers.rabbitmq.ledger import Ledger
from headwater.brokers.rabbitmq.loop import LoopThread
from headwater.errors import SettingsError
from headwater.model import Messages

if TYPE_CHECKING:
    from headwater.brokers.rabbitmq.publisher import Batch, Publisher


class RabbitmqBroker:
    """Publishes with confirms, persistent and, unless told otherwise, mandatory: what no queue takes is refused.

    The connection lives in a thread of its own, which answers heartbeats between calls. RabbitMQ cannot tell what it has
    already: what is sent again may be there twice, with the same message id. A closed broker opens again when it is used.
    """

    def __init__(self, access: RabbitmqAccess) -> None:
        if find_spec("pika") is None:
            raise SettingsError("pika is needed for RabbitMQ, and is not installed; run `pip install 'headwater[rabbitmq]'`")
        self._access = access
        self._thread: LoopThread | None = None
        self._publisher: Publisher | None = None

    def __repr__(self) -> str:
        return f"RabbitmqBroker({self._access.describe()})"

    def publish(self, messages: Messages) -> Published:
        """As `Broker.publish` says."""
        batch = self._batch(messages)
        if batch.ledger.first_open() is not None:
            thread, publisher = self._started()
            thread.run(publisher.publish(batch))
        return batch.ledger.published()

    def offer(self, messages: Messages) -> Offered:
        """As `Broker.offer` says."""
        batch = self._batch(messages)
        if batch.ledger.first_open() is not None:
            thread, publisher = self._started()
            thread.run(publisher.offer(batch))
        return batch.ledger.offered()

    def check(self) -> None:
        """Connect, and log in."""
        thread, publisher = self._started()
        thread.run(publisher.check())

    def close(self) -> None:
        """Let go of the connection, and of its thread."""
        thread, publisher = self._thread, self._publisher
        self._thread = self._publisher = None
        if thread is not None and publisher is not None and thread.is_alive:
            thread.run(publisher.close())
            thread.close()

    def _batch(self, messages: Messages) -> "Batch":
        # pika is imported by those who publish, not by those who read settings.
        from headwater.brokers.rabbitmq.publisher import Batch

        ledger = Ledger(len(messages))
        envelopes = envelop(messages, self._access)
        for index, reason in envelopes.refused.items():
            ledger.refuse(index, reason)
        return Batch(messages.column("id"), envelopes.outgoing, ledger)

    def _started(self) -> "tuple[LoopThread, Publisher]":
        from headwater.brokers.rabbitmq.publisher import Publisher

        if self._thread is None or self._publisher is None or not self._thread.is_alive:
            self._thread = LoopThread(f"rabbitmq {self._access.describe()}")
            self._publisher = Publisher(self._access)
        return self._thread, self._publisher
