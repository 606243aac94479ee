"""Reading a stream in bulk and in order, from a sequence on, for as long as it takes.

The position is ours, not the server's: after a lost connection, a deleted consumer or a silent server a new consumer goes
on behind the last message that came. What the stream threw away before it was read is an error, never a gap.
"""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice, pairwise
from typing import Self

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.consumer import Consumer, Received
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import StreamInfo, stream_info
from headwater.errors import BrokerError, BrokerUnavailable, PositionError

__all__ = ["Received", "StreamReader"]

# How often an idle server says that it is there, and after how many of these times without a word it is given up.
_HEARTBEAT_SECONDS, _HEARTBEATS = 5.0, 2.5
# Between tries while the server is away.
_PAUSE_SECONDS = 0.1


class StreamReader:
    """Messages of a stream from `start_seq` on, of the given subjects (all of them when none is given).

    `start_seq` is the caller's position: when the stream no longer has it, or never came so far, that is `PositionError`.
    0 stands for whatever the stream still has. One thread owns a reader.
    """

    def __init__(self, access: NatsAccess, stream: str, subjects: Sequence[str], start_seq: int) -> None:
        self._access, self._stream, self._subjects = access, stream, tuple(subjects)
        self._seconds = access.timeout.total_seconds()
        self._heartbeat = min(_HEARTBEAT_SECONDS, self._seconds / 3)
        self._buffer: deque[Received] = deque()
        # The last message that came, and up to where everything is known to have come; None when anything will do.
        self._last = max(0, start_seq - 1)
        self._complete = start_seq - 1 if start_seq > 0 else None
        self._created: datetime | None = None
        self._link: Link | None = None
        self._questions: Link | None = None
        self._heard = time.monotonic()
        self._failing_since: float | None = None
        self._consumer: Consumer | None = self._attach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def complete(self) -> int:
        """Everything of the subjects up to here has been handed out: go on behind it. 0 as long as nothing is known.

        It moves on as well while only others' messages come, which the stream may then forget.
        """
        return self._buffer[0].sequence - 1 if self._buffer else self._complete or 0

    def read(self, max_messages: int, wait_seconds: float) -> list[Received]:
        """What has come, up to `max_messages` and in stream order; waits for the first only. Empty when none came in time.

        A server that is away is waited for, within `wait_seconds`, and is `BrokerUnavailable` once it has been away for
        `access.timeout` of reading.
        """
        deadline = time.monotonic() + wait_seconds
        self._pull(0)
        while not self._buffer and (left := deadline - time.monotonic()) > 0:
            self._pull(left)
        count = min(max_messages, len(self._buffer))
        taken = list(islice(self._buffer, count))
        for _ in range(count):
            self._buffer.popleft()
        return taken

    def close(self) -> None:
        """Give the consumer back, so that the server need not keep it for minutes."""
        if self._consumer is not None:
            with suppress(BrokerError):
                self._consumer.delete()
        self._detach()

    def _pull(self, seconds: float) -> None:
        """Take in what has come; what ends a consumer or a connection is mended at the next pull."""
        try:
            if self._consumer is None:
                self._consumer = self._attach()
            received = self._consumer.receive(len(self._buffer), min(seconds, self._heartbeat))
            self._heed_silence(received is None)
            self._note(received or [], self._consumer.looked)
            self._failing_since = None
        except BrokerUnavailable:
            self._detach()
            self._failing_since = self._failing_since or time.monotonic()
            if time.monotonic() - self._failing_since > self._seconds:
                raise
            time.sleep(min(seconds, _PAUSE_SECONDS))
        except BaseException:
            # The consumer may have moved past messages that were not noted; the next one begins behind those that were.
            self._detach()
            raise

    def _note(self, received: Sequence[Received], looked: int) -> None:
        if received:
            self._refuse_loss(received)
            self._buffer.extend(received)
            self._last = self._complete = received[-1].sequence
        if looked > (self._complete or 0):
            if self._complete is not None:
                # Nothing of ours is there, which does not mean that nothing was.
                self._refuse_trimmed(self._complete)
            self._complete = looked

    def _refuse_loss(self, received: Sequence[Received]) -> None:
        """Sequences are missing where other subjects are; that ours were not among them shows where the stream begins."""
        before = received[0].sequence - 1 if self._complete is None else self._complete
        if received[-1].sequence - before == len(received):
            return
        sequences = [before, *(message.sequence for message in received)]
        self._refuse_trimmed(next(first for first, second in pairwise(sequences) if second > first + 1))

    def _refuse_trimmed(self, end: int) -> None:
        """Raise if the stream has thrown away anything behind `end`: it does not tell whose it was."""
        # On a connection of its own: here, the answer would stand behind the messages that are on their way.
        if self._questions is None:
            self._questions = Link(self._access)
        info = stream_info(self._questions, self._stream)
        if info is not None and info.first_seq > end + 1:
            raise self._lost(end + 1, info.first_seq)

    def _heed_silence(self, is_silent: bool) -> None:
        now = time.monotonic()
        if not is_silent:
            self._heard = now
        elif now - self._heard > self._heartbeat * _HEARTBEATS:
            raise BrokerUnavailable(f"NATS at {self._access.describe()} fell silent while stream {self._stream!r} was read")

    def _attach(self) -> Consumer:
        self._link = Link(self._access)
        try:
            self._check(stream_info(self._link, self._stream))
            consumer = Consumer(self._link, self._stream, self._subjects, self._last + 1, self._heartbeat)
        except BaseException:
            self._detach()
            raise
        self._heard = time.monotonic()
        return consumer

    def _detach(self) -> None:
        for link in (self._link, self._questions):
            if link is not None:
                link.close()
        self._link = self._questions = self._consumer = None

    def _check(self, info: StreamInfo | None) -> None:
        """Whether our position is one of this stream, and the stream still has what follows it."""
        if info is None:
            raise BrokerError(
                f"stream {self._stream!r} does not exist at NATS {self._access.describe()}; check its name, and start what "
                "fills it"
            )
        if self._created not in (None, info.created):
            raise PositionError(
                f"stream {self._stream!r} was deleted and made anew at {info.created}, so sequence {self._last} is no "
                "position in it; start from a new snapshot"
            )
        self._created = info.created
        if self._complete is None:
            return
        if info.first_seq > self._complete + 1:
            raise self._lost(self._complete + 1, info.first_seq)
        if self._complete > info.last_seq:
            raise PositionError(
                f"stream {self._stream!r} ends at sequence {info.last_seq}, before the wanted {self._complete + 1}; it was "
                "made anew, or it is another one: start from a new snapshot"
            )

    def _lost(self, wanted: int, oldest: int) -> PositionError:
        return PositionError(
            f"stream {self._stream!r} no longer has sequence {wanted}, which is next to be read; the oldest is {oldest}: "
            "let the stream keep more (max_age, max_bytes, max_msgs), and start from a new snapshot"
        )
