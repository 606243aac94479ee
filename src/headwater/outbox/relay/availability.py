"""Whether the broker can be reached: while it cannot, nothing is claimed, and new rows are written without a lease."""

import asyncio
import logging

from headwater.errors import BrokerError
from headwater.outbox.relay.counts import Counts

_log = logging.getLogger(__name__)


class Availability:
    """Known by those who send, and told once when it changes."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._up.set()
        self._has_been_up = False

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    def lost(self, error: BrokerError) -> None:
        """The broker cannot be reached.

        Raises the error if it is one that no waiting cures, unless the broker has let us in before: then somebody has
        changed something there, and may change it again.
        """
        if not error.retryable and not self._has_been_up:
            raise error
        if self._up.is_set():
            self._up.clear()
            self._down.set()
            self._counts.is_broker_up = False
            _log.warning("the broker is away, and events wait in the outbox: %s", error)

    def found(self) -> None:
        self._has_been_up = True
        if not self._up.is_set():
            self._up.set()
            self._down.clear()
            self._counts.is_broker_up = True
            _log.warning("the broker is back, and what waits in the outbox is sent")

    async def up(self) -> None:
        await self._up.wait()

    async def down(self) -> None:
        await self._down.wait()
