"""The slot as the server sees it, read now and then while the demo runs."""

import time

from headwater.cli.demo.statements import SLOT
from headwater.model import Lsn
from headwater.postgres.connect import Connection
from headwater.postgres.replication.slot import find_slot

# As often as a reader can follow.
_SECONDS = 0.25


class Gauge:
    """The slot as the server sees it: what is confirmed, what is not, and how much WAL is kept for it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._next = 0.0
        self.confirmed = Lsn(0)
        self.behind = self.retained = self.peak_retained = 0

    def look(self) -> None:
        """Ask the server, if the last answer is not too young."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SECONDS
        slot = find_slot(self._connection, SLOT)
        if slot is not None:
            self.confirmed = slot.confirmed_flush_lsn or self.confirmed
            self.behind, self.retained = slot.lag_bytes or 0, slot.retained_bytes or 0
            self.peak_retained = max(self.peak_retained, self.retained)
