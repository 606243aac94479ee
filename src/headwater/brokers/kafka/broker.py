"""Publishing to Kafka: many messages under way at once, acknowledged by all replicas in sync on return.

librdkafka keeps the order of a partition while it tries again, and the brokers drop what they have already. What it gives
up is sent again here, with what overtook it.
"""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from headwater.brokers.base import Offered, Published, destinations
from headwater.brokers.kafka.access import KafkaAccess
from headwater.brokers.kafka.flight import Flight
from headwater.brokers.kafka.ledger import Ledger
from headwater.brokers.kafka.producer import build_producer, require_client
from headwater.brokers.kafka.records import Record, records
from headwater.brokers.kafka.refusal import Verdict, judge, no_entry, unavailable
from headwater.errors import BrokerError
from headwater.model import Messages

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

# Between passes; short, since librdkafka has waited already before it gave up.
_PAUSE_SECONDS = 0.1


class KafkaBroker:
    """One writer, for one thread at a time. It counts no duplicates: the brokers drop those of a retry without a word."""

    def __init__(self, access: KafkaAccess) -> None:
        require_client()
        self._access = access
        self._producer: Producer | None = None
        self._flight: Flight | None = None
        # What the producer said while nothing was on its way.
        self._heard: list[KafkaError] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections, and of what is on its way after a publish that failed."""
        if self._producer is not None:
            producer, self._producer, self._flight = self._producer, None, None
            # Closing waits for what is on its way, and would do so for ever.
            producer.purge()
            producer.close()

    def check(self) -> None:
        """Ask for the brokers of the cluster, which those who are not let in are not told."""
        heard: list[KafkaError] = []
        producer = build_producer(self._access, heard.append)
        try:
            _ask(self._access, producer, heard)
        finally:
            producer.close()

    def publish(self, messages: Messages) -> Published:
        """Send messages, each key in order; on return each is acknowledged, or refused for good.

        What comes back is sent again, with what was stored behind it under its key, until nothing has moved for
        `access.timeout`: then it is `BrokerUnavailable`.
        """
        ledger = Ledger(destinations(self._access.topic, messages).to_pylist(), messages.column("key").to_pylist())
        fewest, since = len(messages), time.monotonic()
        try:
            while (first := ledger.first_open()) is not None:
                flight = self._pass(records(self._access, messages, first), ledger)
                ledger.reopen_overtaken()
                if ledger.count_open() < fewest:
                    fewest, since = ledger.count_open(), time.monotonic()
                elif time.monotonic() - since > self._access.timeout.total_seconds():
                    raise unavailable(self._access, flight.reason)
                if flight.has_failed:
                    time.sleep(_PAUSE_SECONDS)
        except BaseException:
            # Reports of what is under way must not be taken for those of the next call.
            self.close()
            raise
        return ledger.published()

    def offer(self, messages: Messages) -> Offered:
        """As `Broker.offer` says. Messages of which it is not known which was to blame for a failure are sent alone."""
        deadline = time.monotonic() + self._access.timeout.total_seconds()
        ledger = Ledger(destinations(self._access.topic, messages).to_pylist(), messages.column("key").to_pylist())
        if not len(messages):
            return ledger.offered(0, "")
        flight: Flight | None = None
        broken = ""
        try:
            flight = self._flight = Flight(self._access, self._reached(), ledger, deadline - time.monotonic())
            self._send_once(flight, messages, ledger)
        except BrokerError as error:
            self.close()
            if flight is None or not flight.sent:
                raise
            broken = str(error)
        except BaseException:
            self.close()
            raise
        self._end(flight)
        return ledger.offered(flight.sent, broken)

    def _send_once(self, flight: Flight, messages: Messages, ledger: Ledger) -> None:
        flight.send(records(self._access, messages, 0))
        if suspects := frozenset(ledger.suspects):
            flight.send(record for record in records(self._access, messages, 0) if record.place in suspects)

    def _pass(self, outgoing: Iterator[Record], ledger: Ledger) -> Flight:
        if self._producer is None:
            self._producer = build_producer(self._access, self._hear)
        self._flight = flight = Flight(self._access, self._producer, ledger)
        flight.send(outgoing)
        self._end(flight)
        return flight

    def _end(self, flight: Flight) -> None:
        self._flight = None
        if flight.is_fatal:
            self.close()

    def _reached(self) -> "Producer":
        """The producer. A new one has found the cluster: a flight cannot tell whether what is under way was ever sent."""
        if self._producer is None:
            self._heard.clear()
            self._producer = build_producer(self._access, self._hear)
            _ask(self._access, self._producer, self._heard)
        return self._producer

    def _hear(self, error: "KafkaError") -> None:
        if self._flight is not None:
            self._flight.hear(error)
        else:
            self._heard.append(error)


def _ask(access: KafkaAccess, producer: "Producer", heard: "Sequence[KafkaError]") -> None:
    """Ask for the brokers of the cluster; raises when there are none, or they do not let us in, of which it is heard."""
    from confluent_kafka import KafkaException

    try:
        producer.list_topics(timeout=access.timeout.total_seconds())
    except KafkaException as exc:
        for error in heard:
            if judge(error) is Verdict.ENTRY:
                raise no_entry(access, error) from exc
        raise unavailable(access, exc.args[0]) from exc
