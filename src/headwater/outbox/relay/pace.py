"""How long to wait from one attempt to the next, so that under load many events share one. Pure."""

import math
from typing import Final

from headwater.outbox.relay.settings import RelaySettings

# From here on an attempt has a dozen events in `send_every_busy`.
_BUSY_PER_SECOND: Final = 300.0
# Over which the rate is taken: long enough that a few events that come together by chance are no load.
_MEMORY_SECONDS: Final = 0.3


class Pace:
    """By how many events have come lately in a second."""

    def __init__(self, settings: RelaySettings) -> None:
        self._calm, self._busy = settings.send_every.total_seconds(), settings.send_every_busy.total_seconds()
        self._before: float | None = None
        self._rate = 0.0

    def next_at(self, events: int, now: float) -> float:
        """When the next attempt may begin, if one with so many events begins now."""
        if self._before is not None and now > self._before:
            seconds = now - self._before
            kept = math.exp(-seconds / _MEMORY_SECONDS)
            self._rate = kept * self._rate + (1 - kept) * events / seconds
        self._before = now
        return now + (self._busy if self._rate > _BUSY_PER_SECOND else self._calm)
