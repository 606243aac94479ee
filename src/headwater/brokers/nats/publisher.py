"""Publishing to JetStream in bulk: many messages under way at once, durable on return, in order, each id once.

nats-py costs a coroutine, a future and a JSON parse for each message. Here a whole window of publishes is one buffer, and
the answers to it are read as they come, so that neither side waits for the other to read.
"""

import time
from collections.abc import Iterator
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.brokers import base
from headwater.brokers.base import Left, Offered
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.acks import AckReader, Acks, Failure
from headwater.brokers.nats.frames import Frames, Outgoing, build_frames
from headwater.brokers.nats.ledger import Integers, Ledger, Published, Refused
from headwater.brokers.nats.link import INBOX_SID, Link
from headwater.errors import BrokerError, BrokerUnavailable

__all__ = ["Outgoing", "Published", "Publisher", "Refused"]

# Publishes are built this many at a time: enough that the cost of a build is that of its messages.
_BLOCK_MESSAGES, _BLOCK_BYTES = 4000, 8 << 20
# And sent this many at a time, so that the server is at work while we read its answers.
_SLICE_MESSAGES = 500
# Less than the 128 MiB that a stream lets wait in memory before it refuses more; several writers share them.
_PENDING_BYTES = 16 << 20
# A connection on which no answer comes is given up after a part of the timeout, so that another one can be tried in time.
_TRIES_PER_TIMEOUT = 3
# Between tries while the server is away or refuses; short, since what is lost is the time after it is well again.
_PAUSE_SECONDS = 0.1
_MESSAGE_TOO_LARGE = 10054


class Publisher:
    """One writer; not for use by several threads. It connects again by itself, for as long as `access.timeout`."""

    def __init__(self, access: NatsAccess) -> None:
        self._access = access
        self._seconds = access.timeout.total_seconds()
        self._link: Link | None = Link(access)
        self.max_payload = self._link.max_payload

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def publish(self, outgoing: Outgoing) -> Published:
        """Store all messages; on return each is acknowledged, was there already, or is refused for good.

        What is not acknowledged is sent again, from the first such message on, until nothing has moved for
        `access.timeout`: then it is `BrokerUnavailable`, and any part of the messages may have been stored. Messages that
        came to stand behind later ones are stored once more behind those, under their id and `-r<n>`.
        """
        ledger = Ledger(len(outgoing), _booleans(outgoing.starts))
        patience = _Patience(self._seconds)
        while (start := ledger.first_open()) is not None:
            try:
                problem = self._attempt(outgoing, ledger)
            except BrokerUnavailable as error:
                self.close()
                patience.spend(start, error)
            except BaseException:
                # Answers to what is under way must not be taken for those of the next call.
                self.close()
                raise
            else:
                if problem is not None:
                    patience.spend(start, problem)
            ledger.reopen_misplaced()
        return ledger.result()

    def offer(self, outgoing: Outgoing, seconds: float) -> Offered:
        """Send all messages once, of whatever streams and whatever becomes of any; raises only if none went out."""
        ledger = Ledger(len(outgoing))
        try:
            link = self._awake()
            self._refuse_oversized(outgoing, ledger)
            indices = ledger.open()
            flight = _Flight(link, outgoing.chosen(indices, ledger.rounds[indices]), self._access, seconds, is_ordered=False)
            left = self._send_once(flight, indices, outgoing, ledger)
        except BaseException:
            self.close()
            raise
        result = ledger.result()
        refused = tuple(base.Refused(one.index, one.reason) for one in result.refused)
        return Offered(result.stored, result.duplicates, refused, tuple(left[index] for index in ledger.open().tolist()))

    def connected(self) -> Link:
        """The link, for requests between publishes; opened again if the last publish has closed it."""
        if self._link is None:
            self._link = Link(self._access)
            self.max_payload = self._link.max_payload
        return self._link

    def _attempt(self, outgoing: Outgoing, ledger: Ledger) -> BrokerUnavailable | None:
        """Send what is open and note the answers; what went wrong, for a reason that may pass.

        Once a message is refused or found in the wrong place nothing new is sent: all behind it would be misplaced too.
        """
        link = self.connected()
        self._refuse_oversized(outgoing, ledger)
        indices = ledger.to_send()
        quiet = self._seconds / _TRIES_PER_TIMEOUT
        flight = _Flight(link, outgoing.chosen(indices, ledger.rounds[indices]), self._access, quiet, is_ordered=True)
        is_new = bool(len(indices)) and int(indices[0]) >= ledger.sent_end
        failure: Failure | None = None
        try:
            for answer in flight.answers():
                match answer:
                    case Acks(numbers, sequences, is_duplicate):
                        if not ledger.acknowledge(indices[numbers], sequences, is_duplicate) and is_new:
                            flight.stop()
                    case Failure(number, code, reason) if answer.is_final:
                        ledger.refuse(int(indices[number]), code, reason)
                    case Failure():
                        failure = failure or answer
                        flight.stop()
        finally:
            if flight.sent:
                ledger.note_sent(int(indices[flight.sent - 1]) + 1)
        return None if failure is None else self._refused(outgoing.subject_of(int(indices[failure.number])), failure)

    def _send_once(self, flight: "_Flight", indices: Integers, outgoing: Outgoing, ledger: Ledger) -> dict[int, Left]:
        """Note all answers; what is left, by place, also for want of an answer. Raises if nothing went out."""
        left: dict[int, Left] = {}
        try:
            for answer in flight.answers():
                match answer:
                    case Acks(numbers, _, is_duplicate):
                        ledger.store(indices[numbers], is_duplicate)
                    case Failure(number, code, reason) if answer.is_final:
                        ledger.refuse(int(indices[number]), code, reason)
                    case Failure(number):
                        index = int(indices[number])
                        reason = str(self._refused(outgoing.subject_of(index), answer))
                        left[index] = Left(index, reason, was_sent=True, was_answered=True)
        except BrokerError as error:
            if not flight.has_gone_out:
                raise
            self.close()
            for place, index in enumerate(indices.tolist()):
                left.setdefault(index, Left(index, str(error), was_sent=place < flight.sent))
        unknown = [index for index in ledger.open().tolist() if index not in left]
        if unknown:
            # Another one was answered twice; the answer to this one must not be taken for that of the next call.
            self.close()
            left |= {index: Left(index, f"no answer from {self._access.describe()}", was_sent=True) for index in unknown}
        return left

    def _awake(self) -> Link:
        """The link, opened again if the server hung up while nobody used it."""
        link = self.connected()
        link.revive()
        self.max_payload = link.max_payload
        return link

    def _refuse_oversized(self, outgoing: Outgoing, ledger: Ledger) -> None:
        """The server would hang up on a publish larger than this."""
        sizes = outgoing.sizes()
        for index in np.flatnonzero(sizes > self.max_payload).tolist():
            reason = f"{sizes[index]} bytes with headers are more than the server's max_payload of {self.max_payload}"
            ledger.refuse(index, _MESSAGE_TOO_LARGE, reason)

    def _refused(self, subject: str, failure: Failure) -> BrokerUnavailable:
        where = self._access.describe()
        return BrokerUnavailable(
            f"NATS at {where} does not store messages for {subject!r}: {failure.reason}; {_remedy(failure)}"
        )


class _Flight:
    """Messages on their way over one link.

    In one that `is_ordered` the next answer may take `seconds`; another one may be of several streams, and has them for all.
    """

    def __init__(self, link: Link, outgoing: Outgoing, access: NatsAccess, seconds: float, *, is_ordered: bool) -> None:
        self._link, self._outgoing, self._max_pending = link, outgoing, access.max_pending
        self._seconds, self._is_ordered = seconds, is_ordered
        self._reader = AckReader(f"{link.inbox}.", INBOX_SID)
        sizes = outgoing.sizes()
        self._ends = np.concatenate([[0], np.cumsum(sizes)])
        self._count = len(sizes)
        self.sent = self._answered = self._sent_bytes = 0
        self._block, self._block_start, self._block_end = Frames(memoryview(b""), np.zeros(1, np.int64)), 0, 0

    @property
    def has_gone_out(self) -> bool:
        """Whether any byte of it has left us."""
        return self._link.waiting_bytes < self._sent_bytes

    def stop(self) -> None:
        """Send no more; what is under way is still waited for."""
        self._count = self.sent

    def answers(self) -> Iterator[Acks | Failure]:
        """The answers as they come, until each message that was sent has one."""
        heard = time.monotonic()
        while self._answered < self._count:
            self._send()
            before = self._answered, self._link.waiting_bytes
            self._link.pump(heard + self._seconds - time.monotonic())
            yield from self._collect()
            now = time.monotonic()
            if self._is_ordered and (self._answered, self._link.waiting_bytes) != before:
                heard = now
            elif now - heard >= self._seconds and self._answered < self._count:
                raise BrokerUnavailable(
                    f"no answer from NATS at {self._link.where} to what was published to {self._outgoing.subject!r} within "
                    f"{self._seconds:g} s"
                )

    def _collect(self) -> Iterator[Acks | Failure]:
        while run := self._link.take_run(self._reader.run):
            acks = self._reader.parse_run(run)
            self._count_answers(int(acks.numbers[0]), len(acks.numbers))
            yield acks
        for message in self._link.messages():
            match answer := self._reader.parse(message):
                case Acks(numbers, _, _):
                    self._count_answers(int(numbers[0]), 1)
                    yield answer
                case Failure(number, _, _):
                    self._count_answers(number, 1)
                    yield answer

    def _count_answers(self, first: int, count: int) -> None:
        # Answers come in order. When some are left out, such as those of a stream that was deleted while it stored, what
        # follows is stored before them: no more of it than is on its way already.
        if self._is_ordered and first != self._answered:
            self.stop()
        self._answered += count

    def _send(self) -> None:
        """Put into the line what may be under way besides what is."""
        while self.sent < self._count and self._link.waiting_bytes < _BLOCK_BYTES:
            end = min(self.sent + _SLICE_MESSAGES, self._answered + self._max_pending, self._count)
            in_bytes = int(np.searchsorted(self._ends, self._ends[self._answered] + _PENDING_BYTES, side="right")) - 1
            end = min(end, max(in_bytes, self._answered + 1))
            if end <= self.sent:
                return
            if self.sent >= self._block_end:
                self._build()
            end = min(end, self._block_end)
            frames = self._block.part(self.sent - self._block_start, end - self._block_start)
            self._link.send(frames)
            self.sent, self._sent_bytes = end, self._sent_bytes + len(frames)

    def _build(self) -> None:
        start = self.sent
        in_bytes = int(np.searchsorted(self._ends, self._ends[start] + _BLOCK_BYTES, side="right")) - 1
        end = min(start + _BLOCK_MESSAGES, max(in_bytes, start + 1), len(self._ends) - 1)
        self._block = build_frames(self._outgoing.part(start, end), f"{self._link.inbox}.", start)
        self._block_start, self._block_end = start, end


class _Patience:
    """How long a publish goes on without moving."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._start, self._since = -1, 0.0

    def spend(self, start: int | None, error: BrokerUnavailable) -> None:
        """Wait a little before the next try; raises the error once nothing has moved for too long."""
        now = time.monotonic()
        if start is None or start != self._start:
            self._start, self._since = -1 if start is None else start, now
        if now - self._since + _PAUSE_SECONDS > self._seconds:
            raise error
        time.sleep(_PAUSE_SECONDS)


def _booleans(values: pa.Array | None) -> npt.NDArray[np.bool_] | None:
    return None if values is None else np.asarray(values, dtype=np.bool_)


def _remedy(failure: Failure) -> str:
    words = failure.reason.lower()
    if failure.code == 503:
        return "it was deleted, or never made; a producer makes it anew when it tries again, without what it held"
    if "maximum" in words and "exceeded" in words:
        return (
            "the stream is full and set to refuse what is new: raise its limits, purge it, or set its discard policy to old"
        )
    if "insufficient" in words or "resource" in words:
        return "JetStream has no room: give the server or the account more storage, or limit what streams keep"
    return "look into the server's log"
