"""Messages on their way through one producer, and what is reported of each."""

import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from headwater.brokers.kafka.access import KafkaAccess
from headwater.brokers.kafka.ledger import Ledger
from headwater.brokers.kafka.records import Record
from headwater.brokers.kafka.refusal import Verdict, is_of_broker, judge, no_entry, refusal, unavailable

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

# Reports are fetched after so many messages: often enough that they do not gather, and seldom enough to cost nothing.
_POLL_EVERY = 200
_POLL_SECONDS = 0.1


class Flight:
    """One pass over the open messages. It ends early when one fails: nothing more is sent that might have to come twice.

    One with a `limit` in seconds does not: it sends everything, and has so long for all of it.
    """

    def __init__(self, access: KafkaAccess, producer: "Producer", ledger: Ledger, limit: float | None = None) -> None:
        self._access, self._producer, self._ledger = access, producer, ledger
        self._is_ordered = limit is None
        self._seconds = access.timeout.total_seconds() if limit is None else limit
        self._alone: int | None = None
        self._under_way = 0
        self._moved = time.monotonic()
        self._is_purged = False
        # All before this place were given to the producer, or refused.
        self.sent = 0
        # Whether messages were given back, the last reason, and whether this producer can send no more.
        self.has_failed = self.is_fatal = False
        self.reason: KafkaError | None = None

    def send(self, records: Iterable[Record]) -> None:
        """Send all, and wait until each has its report; raises when nothing moves any more, or we are not let in."""
        for number, record in enumerate(records):
            if self._is_over:
                break
            if record.place in self._ledger.suspects:
                self._send_alone(record)
            elif self._ledger.is_open(record.place):
                self._produce(record)
            if number % _POLL_EVERY == 0:
                self._wait(0)
        self._drain()

    def hear(self, error: "KafkaError") -> None:
        """What librdkafka says about brokers and connections, while it is polled."""
        if judge(error) is Verdict.ENTRY:
            raise no_entry(self._access, error)
        self._note(error)

    @property
    def _is_over(self) -> bool:
        """Whether nothing more may be sent."""
        return self.has_failed if self._is_ordered else self.is_fatal

    def _send_alone(self, record: Record) -> None:
        """With nothing else under way an error is about this message. When it is known to be good it is like all others."""
        self._drain()
        if self._is_over:
            return
        self._alone = record.place
        self._produce(record)
        self._drain()
        self._alone = None
        if not self._ledger.is_open(record.place):
            self._ledger.suspects.discard(record.place)

    def _produce(self, record: Record) -> None:
        from confluent_kafka import KafkaException

        while not self._is_over:
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    headers=record.headers,
                    on_delivery=partial(self._settle, record),
                )
            except BufferError:
                self._wait(_POLL_SECONDS)
                continue
            except KafkaException as exc:
                self._judge_unsent(record, exc.args[0])
            else:
                self._under_way += 1
            self.sent = max(self.sent, record.place + 1)
            return

    def _judge_unsent(self, record: Record, error: "KafkaError") -> None:
        """The producer itself has looked at this one message."""
        if judge(error) in (Verdict.MESSAGE, Verdict.TOPIC):
            size = f"; its payload has {len(record.value)} bytes"
            self._ledger.refuse(record.place, refusal(record.topic, error) + size)
        else:
            self._fail(record, error)

    def _settle(self, record: Record, error: "KafkaError | None", _: "Message") -> None:
        self._under_way -= 1
        if error is None:
            self._move()
            self._ledger.store(record.place)
            return
        verdict = judge(error)
        if verdict is Verdict.TOPIC or (verdict is Verdict.MESSAGE and record.place == self._alone):
            self._move()
            self._ledger.refuse(record.place, refusal(record.topic, error))
            return
        if verdict is Verdict.MESSAGE:
            self._ledger.suspects.add(record.place)
        self._fail(record, error)

    def _move(self) -> None:
        if self._is_ordered:
            self._moved = time.monotonic()

    def _fail(self, record: Record, error: "KafkaError") -> None:
        self.has_failed = True
        reason = f"topic {record.topic!r}: {self._access.without_secrets(error.str())}"
        self._ledger.give_back(record.place, reason, was_answered=is_of_broker(error))
        if judge(error) is not Verdict.PURGED:
            self._note(error)

    def _note(self, error: "KafkaError") -> None:
        self.reason = error
        # The report of each message has another error than the producer itself.
        self.is_fatal = self.is_fatal or error.fatal() or error.name() == "_FATAL"

    def _poll(self, seconds: float, *, is_all: bool) -> None:
        from confluent_kafka import KafkaException

        try:
            if is_all:
                # Does not linger for more to send.
                self._producer.flush(seconds)
            else:
                self._producer.poll(seconds)
        except KafkaException as exc:
            # How the client tells that the producer can send no more; the messages come back in the next polls.
            self.hear(exc.args[0])
            self.has_failed = True

    def _drain(self) -> None:
        while self._under_way:
            self._wait(_POLL_SECONDS, is_all=True)

    def _wait(self, seconds: float, *, is_all: bool = False) -> None:
        """Let reports in; after a failure what was not sent yet comes back, and what was sent is waited for.

        To give up what is on its way would let it arrive behind what is sent next.
        """
        self._poll(seconds, is_all=is_all)
        if self._is_ordered and self.has_failed and not self._is_purged:
            self._is_purged = True
            self._producer.purge(in_queue=True, in_flight=False)
        if self._under_way and time.monotonic() - self._moved > self._seconds:
            raise unavailable(self._access, self.reason)
