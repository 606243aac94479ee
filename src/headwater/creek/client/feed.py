"""Packets of one subject of a stream, in order and without a gap, whatever happens to the connection and the server.

The reader of `headwater.brokers.nats` does it, in a thread of its own, because it waits for its socket; it takes a quarter
of the time that nats-py takes for a message, which leaves that much more for decoding.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from headwater.brokers.nats.reader import Received, StreamReader
from headwater.creek.client.broker import Broker
from headwater.errors import BrokerError, BrokerUnavailable

_log = logging.getLogger(__name__)

# Few thread switches for a backlog, and little that waits in memory.
_BATCH: Final = 2_000
# How long closing may have to wait for a reader that waits for messages.
_SLICE_SECONDS: Final = 0.25
# Between tries, once the server has been away for longer than the reader itself waits.
_PAUSE_SECONDS: Final = 0.5

# What came, and up to where everything has come with it.
_Read: TypeAlias = tuple[list[Received], int]


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: at a place, at a time, or with the first message that there is."""

    sequence: int | None = None
    time: datetime | None = None


class Feed:
    """Packets are in `arrived`, to be taken from its left; `wait` for more when there are none. The first wait opens it."""

    def __init__(self, broker: Broker, stream: str, subject: str, start: Start) -> None:
        self._broker, self.stream, self.subject, self._start = broker, stream, subject, start
        self.arrived: deque[Received] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="creek-feed")
        self._reader: StreamReader | None = None
        # Kept until its packets are taken over: whoever waits may be cancelled, and they must not be lost with that.
        self._reading: asyncio.Future[_Read] | None = None
        self._complete = 0
        self._is_away, self._is_closed = False, False

    @property
    def complete(self) -> int:
        """Every packet of the subject up to here was taken; it moves on as well while only others' packets come."""
        return self.arrived[0].sequence - 1 if self.arrived else self._complete

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until a packet has arrived; False if none has in that time. Without a limit, a lost server is waited for."""
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while not self.arrived:
            if self._reader is None:
                await self._open(await self._first_place())
            if self._reading is None:
                self._reading = loop.run_in_executor(self._thread, self._read)
            left = None if deadline is None else max(0.0, deadline - loop.time())
            done, _ = await asyncio.wait([self._reading], timeout=left)
            if not done:
                return False
            await self._take_over(self._reading, may_fail=deadline is not None)
            if deadline is not None and loop.time() >= deadline:
                break
        return bool(self.arrived)

    async def look(self, sequence: int) -> tuple[int, bytes] | None:
        """The first packet from a place on that is in the stream, whatever was read of it: its place and its bytes."""
        return await self._broker.next_message(self.stream, self.subject, sequence)

    async def restart(self, sequence: int) -> None:
        """Read again from another place."""
        self._start, self._complete = Start(sequence), sequence - 1
        await self._leave()
        self.arrived.clear()
        await self._open(sequence)

    async def close(self) -> None:
        """Let go of the connection; nothing more arrives."""
        self._is_closed = True
        self._broker.open_feeds.discard(self)
        self._complete = self.complete
        self.arrived.clear()
        await self._leave()
        self._thread.shutdown(wait=False)

    async def _first_place(self) -> int:
        """Where the reader begins; 0 stands for whatever the stream has."""
        if self._start.time is not None:
            return await self._broker.sequence_at(self.stream, self.subject, self._start.time)
        return self._start.sequence or 0

    async def _open(self, sequence: int) -> None:
        if self._is_closed:
            raise BrokerError(f"the reader of {self.subject} was closed")
        self._broker.open_feeds.add(self)

        def attach() -> None:
            self._reader = StreamReader(self._broker.access, self.stream, (self.subject,), sequence)

        await self._run(attach)

    def _read(self) -> _Read:
        assert self._reader is not None, "it is opened before it is read"
        return self._reader.read(_BATCH, _SLICE_SECONDS), self._reader.complete

    async def _take_over(self, reading: asyncio.Future[_Read], *, may_fail: bool) -> None:
        self._reading = None
        try:
            received, self._complete = reading.result()
            self.arrived.extend(received)
            self._is_away = False
        except BrokerUnavailable as error:
            if may_fail or self._is_closed:
                raise
            if not self._is_away:
                _log.warning("stream %s: %s; waiting for it", self.stream, error)
            self._is_away = True
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _leave(self) -> None:
        reading, self._reading = self._reading, None
        reader, self._reader = self._reader, None
        if reading is not None:
            await asyncio.wait([reading])
            # Whatever became of it does not matter any more, but asyncio wants it looked at.
            reading.exception()
        if reader is not None:
            await self._run(reader.close)

    async def _run(self, work: Callable[[], None]) -> None:
        """Have it done in the reader's own thread, also if whoever waits for it is cancelled meanwhile."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
