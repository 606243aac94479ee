"""Whether the database does what the sessions of a relay ask of it."""

import logging

from headwater.errors import SourceError
from headwater.outbox.relay.counts import Counts

_log = logging.getLogger(__name__)


class Database:
    """Known by the sessions, and told once when it changes: whoever was let down has to be served again."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        # Which one it is, as it has said of itself the last time: a server may be replaced by one of a new release.
        self.identity: str | None = None
        self._without: set[object] = set()

    def lost(self, error: SourceError, by: object) -> None:
        if not self._without:
            self._counts.is_database_up = False
            _log.warning("the outbox cannot be read or written for now: %s", error)
        self._without.add(by)

    def found(self, by: object) -> None:
        was_away = bool(self._without)
        self._without.discard(by)
        if self._without:
            return
        self._counts.is_database_up = True
        if was_away:
            _log.info("the database is back, and the outbox is read and written again")
