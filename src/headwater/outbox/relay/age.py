"""How old the oldest event is that waits, measured now and again by whoever looks into the table anyway."""

import time
from typing import Final

from headwater.outbox import statements
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.session import Session

# As often as anybody looks at it; a search that is woken by every transaction comes by more often.
_EVERY_SECONDS: Final = 1.0


class Age:
    """Written to the counts of a relay; 0 when nothing waits."""

    def __init__(self, session: Session, counts: Counts) -> None:
        self._session, self._counts = session, counts
        self._next_at = 0.0

    async def measure(self) -> None:
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _EVERY_SECONDS
        self._counts.oldest_seconds = next(iter(await self._session.fetch(statements.measure_age())), 0.0)
