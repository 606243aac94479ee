"""The slot as the server sees it, and how far the target is, read now and then while the demo runs."""

import time
from datetime import datetime

from headwater.cli.demo.statements import SLOT, last_applied
from headwater.model import Lsn
from headwater.postgres.connect import Connection
from headwater.postgres.replication.slot import find_slot
from headwater.postgres.statements import fetch_sync

# As often as a reader can follow.
_SECONDS = 0.25


class Gauge:
    """The slot as the server sees it: what is confirmed, what is not, and how much WAL is kept for it.

    `applied_at` is when the last transaction that is in the target was committed.
    """

    def __init__(self, source: Connection, target: Connection) -> None:
        self._source, self._target = source, target
        self.applied_at: datetime | None = None
        self._next = 0.0
        self.confirmed = Lsn(0)
        self.behind = self.retained = self.peak_retained = 0

    def look(self) -> None:
        """Ask the servers; the source only if its last answer is not too young."""
        (self.applied_at,) = fetch_sync(self._target, last_applied())
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SECONDS
        slot = find_slot(self._source, SLOT)
        if slot is not None:
            self.confirmed = slot.confirmed_flush_lsn or self.confirmed
            self.behind, self.retained = slot.lag_bytes or 0, slot.retained_bytes or 0
            self.peak_retained = max(self.peak_retained, self.retained)
