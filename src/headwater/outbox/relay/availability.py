"""Whether the broker takes messages: while it does not, nothing is claimed, and new rows are written without a lease."""

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta
from typing import Final

from headwater.errors import BrokerError
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.thread import BrokerThread

_log = logging.getLogger(__name__)

# An application does not wait for longer to start: one that refuses us does so at once, also from far away.
_MEET_WITHIN: Final = timedelta(seconds=3)


class Availability:
    """Known by those who send, and told once when it changes; before the broker was tried, it is neither there nor away.

    Who has lost the broker has to find it again: a broker that is short of memory lets others in, and does not tell them
    before they have sent something.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._has_been_up = counts.is_broker_up = False
        self._without: set[object] = set()

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    def lost(self, error: BrokerError, by: object = None) -> None:
        """The broker cannot be reached by one of those who send.

        Raises the error if it is one that no waiting cures, unless the broker has let us in before: then somebody has
        changed something there, and may change it again.
        """
        if not error.retryable and not self._has_been_up:
            raise error
        self._without.add(by)
        if not self._down.is_set():
            self._up.clear()
            self._down.set()
            self._counts.is_broker_up = False
            _log.warning("the broker is away, and events wait in the outbox: %s", error)

    def found(self, by: object = None) -> None:
        self._has_been_up = True
        self._without.discard(by)
        if not self._without and not self._up.is_set():
            self._up.set()
            self._counts.is_broker_up = True
            if self._down.is_set():
                self._down.clear()
                _log.info("the broker is back, and what waits in the outbox is sent")

    async def ask(self, broker: BrokerThread, by: object = None) -> bool:
        """Whether the broker lets us in, without a message; raises as `lost` does."""
        try:
            await broker.check()
        except BrokerError as exc:
            self.lost(exc, by)
            return False
        self.found(by)
        return True

    async def meet(self, broker: BrokerThread, by: object = None) -> None:
        """As `ask`, for the first time, and not for long: who has no answer by then asks again later."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_MEET_WITHIN.total_seconds()):
                await self.ask(broker, by)

    async def up(self) -> None:
        await self._up.wait()

    async def down(self) -> None:
        await self._down.wait()
