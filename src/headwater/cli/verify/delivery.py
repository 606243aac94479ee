"""How far a pipeline has delivered, by its slot: that is confirmed when every sink has made a change durable, and no sooner.

The position that a run reports would not do: while tables are read as a whole it runs ahead of changes that wait for them.

Imports Spark's package, so it is imported where that is known to be there.
"""

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from headwater.capture import emit_mark
from headwater.capture.statements import commit_locally
from headwater.errors import SourceError
from headwater.model import Lsn
from headwater.postgres.connect import Connection
from headwater.postgres.replication.slot import find_slot
from headwater.postgres.statements import execute_sync
from headwater.spark.state import fetch_server_position

_POLL_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Delivery:
    """A pipeline's slot, looked at on a connection to the source that has no transaction open."""

    connection: Connection
    slot: str
    patience: timedelta = timedelta(seconds=60)

    @property
    def is_running(self) -> bool:
        slot = find_slot(self.connection, self.slot)
        return slot is not None and slot.active

    def catch_up(self) -> bool:
        """Wait until all that has committed by now is delivered; False if that takes too long, or the pipeline has ended."""
        execute_sync(self.connection, commit_locally())
        mark = self._mark()
        deadline = time.monotonic() + self.patience.total_seconds()
        while time.monotonic() < deadline:
            slot = find_slot(self.connection, self.slot)
            if slot is None or not slot.active:
                return False
            if (slot.confirmed_flush_lsn or Lsn(0)) >= mark:
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _mark(self) -> Lsn:
        try:
            return emit_mark(self.connection)
        except SourceError:
            # Nothing can be written to a standby; there the position itself has to do.
            return fetch_server_position(self.connection).flush_lsn
