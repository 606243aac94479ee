"""The slot as the server sees it, read now and then while the demo runs."""

import time

from headwater.postgres.connect import Connection
from headwater.postgres.replication.slot import find_slot

# As often as a reader can follow.
_SECONDS = 0.25


class Gauge:
    """The slot as the server sees it: how much WAL it keeps, and how much of it we have not confirmed."""

    def __init__(self, connection: Connection, slot: str) -> None:
        self._connection, self._slot = connection, slot
        self._next = 0.0
        self.behind = self.retained = self.peak_retained = 0

    def look(self, *, now: bool = False) -> None:
        """Ask the server, if the last answer is not too young."""
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SECONDS
        slot = find_slot(self._connection, self._slot)
        if slot is not None:
            self.behind, self.retained = slot.lag_bytes or 0, slot.retained_bytes or 0
            self.peak_retained = max(self.peak_retained, self.retained)
