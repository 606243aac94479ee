"""Messages on their way over one session: as many at once as may be unconfirmed, until each has the broker's word."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable

import numpy as np

from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.rabbitmq.frames import Frames, Outgoing, build_frames
from headwater.brokers.rabbitmq.ledger import Confirms
from headwater.brokers.rabbitmq.refusal import blocked, ended
from headwater.brokers.rabbitmq.session import Session
from headwater.errors import BrokerError, BrokerUnavailable

# Publishes are built this many at a time: enough that the cost of a build is that of its messages.
_BLOCK_MESSAGES, _BLOCK_BYTES = 1000, 8 << 20
# Unconfirmed at most, so that neither side holds much.
_PENDING_BYTES = 32 << 20


class Flight:
    """One attempt, which listens to its session; `identify` gives the ids of the messages, should any come back.

    One without `limit` sends nothing behind a message that the broker did not take, and has the timeout for each step. With
    one, it sends everything, and has so many seconds for all of it.
    """

    def __init__(
        self,
        session: Session,
        outgoing: Outgoing,
        identify: Callable[[], list[str]],
        access: RabbitmqAccess,
        limit: float | None = None,
    ) -> None:
        self._session, self._outgoing, self._access = session, outgoing, access
        self._identify = identify
        self._is_ordered = limit is None
        self._seconds = access.timeout.total_seconds() if limit is None else limit
        self._ends = np.concatenate([[0], np.cumsum(outgoing.sizes())])
        self._count = len(outgoing)
        self._wake = asyncio.Event()
        self._block, self._block_start, self._block_end = Frames(memoryview(b""), np.zeros(1, np.int64)), 0, 0
        self._places: defaultdict[tuple[str, str], deque[int]] | None = None
        # The routing key of a message that came back and is none of ours.
        self._stranger: str | None = None
        self.confirms = Confirms(session.next_tag, len(outgoing))
        # Places of messages that no queue takes.
        self.returned: list[int] = []

    def on_confirm(self, tag: int, *, is_multiple: bool, is_stored: bool) -> None:
        self.confirms.settle(tag, is_multiple=is_multiple, is_stored=is_stored)
        if not is_stored and self._is_ordered:
            # All behind it would have to be sent again.
            self._count = self.confirms.sent
        self._wake.set()

    def on_return(self, message_id: str, routing_key: str) -> None:
        """A message that no queue takes comes back before its confirm; it is known by what it has."""
        if self._places is None:
            self._places = defaultdict(deque)
            for place, pair in enumerate(zip(self._identify(), self._outgoing.keys.to_pylist(), strict=True)):
                self._places[pair].append(place)
        places = self._places[message_id, routing_key]
        if places:
            self.returned.append(places.popleft())
        else:
            self._stranger = routing_key
            self._wake.set()

    def on_change(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Return when the broker has had its word on all that was sent, which is less than all once it did not take one."""
        self._session.listener = self
        try:
            await self._run()
        finally:
            self._session.listener = None

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        heard = clock()
        while self.confirms.low < self._count:
            self._raise_if_ended()
            self._send()
            if not self._is_ordered and not self.confirms.sent:
                raise self._stalled()
            before = self.confirms.low, self._session.waiting_bytes
            await self._wait(heard + self._seconds - clock())
            if self._is_ordered and (self.confirms.low, self._session.waiting_bytes) != before:
                heard = clock()
            elif clock() - heard >= self._seconds:
                raise self._stalled()
        self._raise_if_strange()

    async def _wait(self, seconds: float) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _send(self) -> None:
        """Publish what may be under way besides what is."""
        session, confirms = self._session, self.confirms
        while confirms.sent < self._count and session.blocked is None and session.waiting_bytes < _BLOCK_BYTES:
            end = min(confirms.low + self._access.max_pending, self._count)
            in_bytes = int(np.searchsorted(self._ends, self._ends[confirms.low] + _PENDING_BYTES, side="right")) - 1
            end = min(end, max(in_bytes, confirms.low + 1))
            start = confirms.sent
            if end <= start:
                return
            if start >= self._block_end:
                self._build(start)
            end = min(end, self._block_end)
            confirms.register(end - start)
            session.send(self._block.part(start - self._block_start, end - self._block_start), end - start)

    def _build(self, start: int) -> None:
        in_bytes = int(np.searchsorted(self._ends, self._ends[start] + _BLOCK_BYTES, side="right")) - 1
        end = min(start + _BLOCK_MESSAGES, max(in_bytes, start + 1), len(self._outgoing))
        self._block = build_frames(self._outgoing.part(start, end), self._session.channel_number, self._session.frame_max)
        self._block_start, self._block_end = start, end

    def _raise_if_ended(self) -> None:
        error = self._session.ended
        if error is not None:
            raise ended(error, self._access) from error
        self._raise_if_strange()

    def _raise_if_strange(self) -> None:
        if self._stranger is not None:
            raise BrokerError(
                f"RabbitMQ at {self._access.describe()} returned a message for {self._stranger!r} that was not sent to it"
            )

    def _stalled(self) -> BrokerUnavailable:
        where, waiting = self._access.describe(), self.confirms.count_waiting
        if (reason := self._session.blocked) is not None:
            return blocked(reason, self._access)
        return BrokerUnavailable(
            f"RabbitMQ at {where} confirmed none of the {waiting} messages under way within {self._seconds:g} s; look into "
            "its log, and whether its quorum queues have a majority"
        )
