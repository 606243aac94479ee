"""How old the oldest event is that waits, asked all the time: so it is known too whether the database is there."""

import asyncio
import time
from contextlib import suppress
from typing import Final

from headwater.errors import ConnectionLost
from headwater.outbox import statements
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.session import Session

# As often as anybody looks at it.
_EVERY_SECONDS: Final = 1.0


class Age:
    """Written to the counts of a relay; 0 when nothing waits. Neither an absent broker nor a full queue holds it up."""

    def __init__(self, session: Session, counts: Counts) -> None:
        self._session, self._counts = session, counts

    async def run(self) -> None:
        while True:
            # The session has said so.
            with suppress(ConnectionLost):
                await self.measure()
            await asyncio.sleep(_EVERY_SECONDS)

    async def measure(self) -> None:
        # Nothing is older than what is found by a question that is asked now.
        now = time.monotonic()
        self._counts.oldest_seconds = next(iter(await self._session.fetch(statements.measure_age())), 0.0)
        self._counts.oldest_measured = now
