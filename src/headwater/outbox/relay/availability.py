"""Whether the broker takes messages: while it does not, nothing is claimed, and new rows are written without a lease."""

import asyncio
import logging

from headwater.errors import BrokerError
from headwater.outbox.relay.counts import Counts

_log = logging.getLogger(__name__)


class Availability:
    """Known by those who send, and told once when it changes.

    Who has lost the broker has to find it again: a broker that is short of memory lets others in, and does not tell them
    before they have sent something.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._up.set()
        self._has_been_up = False
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
        if self._up.is_set():
            self._up.clear()
            self._down.set()
            self._counts.is_broker_up = False
            _log.warning("the broker is away, and events wait in the outbox: %s", error)

    def found(self, by: object = None) -> None:
        self._has_been_up = True
        self._without.discard(by)
        if not self._without and not self._up.is_set():
            self._up.set()
            self._down.clear()
            self._counts.is_broker_up = True
            _log.warning("the broker is back, and what waits in the outbox is sent")

    async def up(self) -> None:
        await self._up.wait()

    async def down(self) -> None:
        await self._down.wait()
