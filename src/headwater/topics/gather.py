"""Where messages wait for the next batch of a producer: bounded, and with a future for each who sent some."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from headwater.errors import TopicError
from headwater.topics.message import Encoded
from headwater.topics.produce_settings import ProducerSettings


class Placed(NamedTuple):
    """Where a message stands."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Sending:
    """Messages of one sender, who waits for their places."""

    messages: Sequence[Encoded]
    size: int
    placed: "asyncio.Future[list[Placed]]"

    def settle(self, places: Iterator[Placed]) -> None:
        """Tell the sender the next places, as many as it sent messages."""
        placed = [next(places) for _ in self.messages]
        # Who was cancelled meanwhile does not want to know.
        if not self.placed.done():
            self.placed.set_result(placed)

    def fail(self, error: Exception) -> None:
        if not self.placed.done():
            self.placed.set_exception(error)
            # Asked for here, so that nobody is blamed for not asking who was cancelled in the same moment.
            self.placed.exception()


class Gathering:
    """A queue with many writers and one reader, all in one event loop."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._waiting: deque[Sending] = deque()
        self._messages = self._bytes = self._blocked = 0
        self._arrived, self._filled, self._room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._is_closed = False
        self._failure: Exception | None = None

    async def put(self, messages: Sequence[Encoded], size: int) -> "asyncio.Future[list[Placed]]":
        """Have messages sent, when there is room for them; their places come by the future."""
        if self._is_closed:
            raise TopicError("the producer is closed; open another one to send more")
        while not self._has_room:
            await self._wait_for_room()
        if self._failure is not None:
            raise self._failure
        sending = Sending(messages, size, asyncio.get_running_loop().create_future())
        self._waiting.append(sending)
        self._messages += len(messages)
        self._bytes += size
        self._arrived.set()
        if self._bytes >= self._settings.batch_bytes:
            self._filled.set()
        return sending.placed

    async def take(self) -> list[Sending]:
        """All that waits, up to the bytes of a batch; waits for some. Nothing when it is closed and all was taken."""
        while not self._waiting:
            if self._is_closed and not self._blocked:
                return []
            self._arrived.clear()
            await self._arrived.wait()
        await self._linger()
        taken: list[Sending] = []
        size = 0
        while self._waiting and (not taken or size + self._waiting[0].size <= self._settings.batch_bytes):
            sending = self._waiting.popleft()
            self._messages -= len(sending.messages)
            self._bytes -= sending.size
            if not sending.placed.cancelled():
                taken.append(sending)
                size += sending.size
        self._room.set()
        return taken or await self.take()

    def close(self) -> None:
        """Take nothing more, but from those who wait for room."""
        self._is_closed = True
        self._arrived.set()
        self._filled.set()

    def fail(self, error: Exception) -> None:
        """Raise for all who wait."""
        self._failure = error
        fail(self._waiting, error)
        self._waiting.clear()
        self._messages = self._bytes = 0
        self._room.set()

    @property
    def _has_room(self) -> bool:
        return self._messages < self._settings.waiting_messages and self._bytes < self._settings.waiting_bytes

    async def _wait_for_room(self) -> None:
        self._room.clear()
        self._blocked += 1
        try:
            await self._room.wait()
        finally:
            self._blocked -= 1
            self._arrived.set()

    async def _linger(self) -> None:
        seconds = self._settings.linger.total_seconds()
        if seconds and not self._is_closed and self._bytes < self._settings.batch_bytes:
            self._filled.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._filled.wait(), seconds)


def settle(sendings: Iterable[Sending], places: Iterable[Placed]) -> None:
    """Tell all senders of a batch where their messages stand."""
    remaining = iter(places)
    for sending in sendings:
        sending.settle(remaining)


def fail(sendings: Iterable[Sending], error: Exception) -> None:
    """Raise for all senders of a batch."""
    for sending in sendings:
        sending.fail(error)
