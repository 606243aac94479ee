"""Whole messages of one subject: packets put together, also those of a message that began before the place to start at."""

import logging
from typing import TypeAlias

from headwater.creek.client.feed import Feed
from headwater.creek.framing import FIRST_BYTES, Reassembly

_log = logging.getLogger(__name__)

_FIRST = b"\0\0"


# A message: the place of its last packet, the headers of that, and the body. No more than a tuple, for there are many.
Whole: TypeAlias = tuple[int, bytes | None, bytes]


class Messages:
    """Messages of a feed that are complete at or behind its start."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._reassembly = Reassembly()
        # Whether the packets before this one left something that a next one belongs to.
        self._is_between = False
        self._is_first, self._from = True, 0

    @property
    def complete(self) -> int:
        """Every message up to here was taken; 0 while that is not known, as in the middle of a message."""
        return 0 if self._reassembly.is_open(self.feed.subject) else self.feed.complete

    async def next(self, seconds: float | None = None) -> Whole | None:
        """The next message; None if no packet comes in that time."""
        while (whole := self.take()) is None:
            if not self.feed.arrived and not await self.feed.wait(seconds):
                return None
            if self._is_first:
                await self._begin()
        return whole

    def take(self) -> Whole | None:
        """The next message, if all of it has arrived."""
        arrived = self.feed.arrived
        while arrived and not self._is_first:
            _, sequence, _, headers, data = arrived.popleft()
            size = len(data) - FIRST_BYTES
            if not self._is_between and int.from_bytes(data[:FIRST_BYTES]) == size:
                # Nearly all messages are one packet: number 0, and as long as it says.
                body = data[FIRST_BYTES:]
            elif (whole := self._add(sequence, data)) is None:
                continue
            else:
                body = whole
            if sequence >= self._from:
                return sequence, headers, body
        return None

    def _add(self, sequence: int, data: bytes) -> bytes | None:
        skipped = self._reassembly.skipped
        body = self._reassembly.add(self.feed.subject, data)
        self._is_between = body is None or data[:2] != _FIRST
        if self._reassembly.skipped > skipped:
            _log.warning(
                "stream %s: a message of %s was never completed before %d; its producer sends it again, or broke off",
                self.feed.stream,
                self.feed.subject,
                sequence,
            )
        return body

    async def _begin(self) -> None:
        """If the first packet is not its message's first, start again before it; what ends before is left out."""
        sequence, step = self.feed.arrived[0].sequence, int.from_bytes(self.feed.arrived[0].payload[:2])
        # Other tables have their packets between, so it may be further back than the packet's number.
        while 0 < step < 2 * sequence:
            found = await self.feed.look(max(1, sequence - step))
            if found is not None and found[0] < sequence and found[1][:2] == _FIRST:
                self._from = sequence
                await self.feed.restart(found[0])
                break
            step *= 2
        self._is_first = False
