"""Whether the broker takes messages: while it does not, nothing is claimed, and new rows are written without a lease."""

import asyncio
import logging
from datetime import timedelta
from typing import Final

from headwater.errors import BrokerError
from headwater.outbox.relay.backoff import full_jitter
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.thread import BrokerThread

_log = logging.getLogger(__name__)

# An application does not wait for longer to start: one that refuses us does so at once, also from far away.
_MEET_WITHIN: Final = timedelta(seconds=3)

# While the broker is away; short, since what is lost is the time after it is well again.
_ABSENCE: Final = (timedelta(milliseconds=100), timedelta(seconds=2))
# While it does not let us in: it may count that, and somebody has to come and mend it.
_REFUSAL: Final = (timedelta(milliseconds=200), timedelta(seconds=10))


class Availability:
    """Known by those who send, and told once when it changes; before the broker was tried, it is neither there nor away.

    Who has lost the broker has to find it again: a broker that is short of memory lets others in, and does not tell them
    before they have sent something.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._up, self._down = asyncio.Event(), asyncio.Event()
        counts.is_broker_up = False
        # Whether it was there the last time and did not let us in, which somebody has to mend.
        self._is_refusing = False
        self._without: set[object] = set()

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    def lost(self, error: BrokerError, by: object = None) -> None:
        """The broker cannot be reached by one of those who send, or does not let him in; the latter is said also later."""
        is_news = not self._down.is_set() or (not error.retryable and not self._is_refusing)
        self._is_refusing = not error.retryable
        self._without.add(by)
        self._up.clear()
        self._down.set()
        self._counts.is_broker_up = False
        if is_news:
            _log.warning("the broker is away, and events wait in the outbox: %s", error)

    def found(self, by: object = None) -> None:
        self._without.discard(by)
        if not self._without and not self._up.is_set():
            self._up.set()
            self._counts.is_broker_up = True
            if self._down.is_set():
                self._down.clear()
                self._is_refusing = False
                _log.info("the broker is back, and what waits in the outbox is sent")

    def pause(self, failures: int, chance: float) -> float:
        """Seconds until it is tried again, after so many failures in a row, by a `chance` between 0 and 1."""
        return full_jitter(*(_REFUSAL if self._is_refusing else _ABSENCE), failures, chance)

    async def ask(self, broker: BrokerThread, by: object = None) -> bool:
        """Whether the broker lets us in, without a message."""
        try:
            await broker.check()
        except BrokerError as exc:
            self.lost(exc, by)
            return False
        self.found(by)
        return True

    async def meet(self, broker: BrokerThread, by: object = None) -> None:
        """As `ask`, for the first time: raises the error of a broker that does not let us in. Not for long, too: who has no
        answer by then asks again later."""
        try:
            async with asyncio.timeout(_MEET_WITHIN.total_seconds()):
                await broker.check()
        except TimeoutError:
            return
        except BrokerError as exc:
            if not exc.retryable:
                raise
            self.lost(exc, by)
        else:
            self.found(by)

    async def up(self) -> None:
        await self._up.wait()

    async def down(self) -> None:
        await self._down.wait()
