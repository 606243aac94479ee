"""Where messages wait for the next batch of a producer: bounded, and with a future for each who sent some.

Messages with keys go out in the order in which they were sent, by one connection. Those without have none to keep: while
many of them wait, others help.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from headwater.errors import TopicError
from headwater.topics.encoded import Encoded
from headwater.topics.places import Places
from headwater.topics.produce_settings import ProducerSettings

# From here on the work on a batch is more than what a second one costs.
MUCH_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Sending:
    """Messages of one sender, who waits for their places."""

    messages: Encoded
    size: int
    # Whether it may go out before others that were sent earlier.
    is_free: bool
    placed: "asyncio.Future[Places]"

    def settle(self, places: Places) -> None:
        """Tell the sender where its messages stand, unless it was cancelled meanwhile."""
        if not self.placed.done():
            self.placed.set_result(places)

    def fail(self, error: Exception) -> None:
        if not self.placed.done():
            self.placed.set_exception(error)
            # Asked for here, so that nobody is blamed for not asking who was cancelled in the same moment.
            self.placed.exception()


class Gathering:
    """A queue with many writers, one reader, and others who help it, all in one event loop."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._waiting: deque[Sending] = deque()
        self._messages = self._bytes = self._blocked = 0
        # Of what waits, what is free; and how many wait for something to take.
        self._free_bytes = self._idle = 0
        self._arrived, self._filled, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._much = asyncio.Event()
        self._is_closed = False
        self._failure: Exception | None = None

    async def put(self, messages: Encoded) -> "asyncio.Future[Places]":
        """Have messages sent, when there is room for them; their places come by the future."""
        if self._is_closed:
            raise TopicError("the producer is closed; open another one to send more")
        while not self._has_room:
            await self._wait_for_room()
        if self._failure is not None:
            raise self._failure
        placed = asyncio.get_running_loop().create_future()
        sending = Sending(messages, sum(messages.sizes), messages.keys is None, placed)
        self._waiting.append(sending)
        self._count(sending, 1)
        self._arrived.set()
        if self._free_bytes >= MUCH_BYTES:
            self._much.set()
        if self._bytes >= self._settings.batch_bytes:
            self._filled.set()
        return sending.placed

    async def take(self) -> list[Sending]:
        """All that waits, up to the bytes of a batch; waits for some. Nothing when it is closed and all was taken."""
        while not self._waiting:
            if self._is_closed and not self._blocked:
                return []
            await self._wait_for(self._arrived)
        await self._linger()
        return self._taken(is_help=False) or await self.take()

    async def help(self) -> list[Sending]:
        """What is free, when that is much. Nothing when it is closed, and there is no more of it than others can take."""
        while self._free_bytes < MUCH_BYTES:
            if self._is_closed and not self._blocked:
                return []
            await self._wait_for(self._much)
        return self._taken(is_help=True) or await self.help()

    def close(self) -> None:
        """Take nothing more, but from those who wait for room."""
        self._is_closed = True
        self._arrived.set()
        self._filled.set()
        self._much.set()

    def fail(self, error: Exception) -> None:
        """Raise for all who wait."""
        self._failure = error
        fail(self._waiting, error)
        self._waiting.clear()
        self._messages = self._bytes = self._free_bytes = 0
        self._room.set()

    @property
    def _has_room(self) -> bool:
        return self._messages < self._settings.waiting_messages and self._bytes < self._settings.waiting_bytes

    def _count(self, sending: Sending, sign: int) -> None:
        self._messages += sign * len(sending.messages)
        self._bytes += sign * sending.size
        self._free_bytes += sign * sending.size * sending.is_free

    def _taken(self, *, is_help: bool) -> list[Sending]:
        """The next that wait, up to the bytes of a batch; half of what is free is left to others who have nothing to do."""
        spared = self._free_bytes // 2 if self._idle and self._free_bytes >= 2 * MUCH_BYTES else 0
        taken: list[Sending] = []
        left: list[Sending] = []
        size = 0
        while self._waiting and (not taken or size + self._waiting[0].size <= self._settings.batch_bytes):
            sending = self._waiting.popleft()
            if (self._free_bytes <= spared) if sending.is_free else is_help:
                left.append(sending)
                continue
            self._count(sending, -1)
            if not sending.placed.cancelled():
                taken.append(sending)
                size += sending.size
        self._waiting.extendleft(reversed(left))
        self._room.set()
        return taken

    async def _wait_for(self, event: asyncio.Event) -> None:
        event.clear()
        self._idle += 1
        try:
            await event.wait()
        finally:
            self._idle -= 1

    async def _wait_for_room(self) -> None:
        self._room.clear()
        self._blocked += 1
        try:
            await self._room.wait()
        finally:
            self._blocked -= 1
            self._arrived.set()
            self._much.set()

    async def _linger(self) -> None:
        seconds = self._settings.linger.total_seconds()
        if seconds and not self._is_closed and self._bytes < self._settings.batch_bytes:
            self._filled.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._filled.wait(), seconds)


def settle(sendings: Iterable[Sending], places: Places) -> None:
    """Tell all senders of a batch where their messages stand."""
    begin = 0
    for sending in sendings:
        end = begin + len(sending.messages)
        sending.settle(places[begin:end])
        begin = end


def fail(sendings: Iterable[Sending], error: Exception) -> None:
    """Raise for all senders of a batch."""
    for sending in sendings:
        sending.fail(error)
