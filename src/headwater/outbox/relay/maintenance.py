"""The partitions of a table that relays serve: made ahead, and dropped when all in them was published long ago."""

import asyncio
import logging
from contextlib import closing

from headwater.errors import ConnectionLost
from headwater.outbox import statements
from headwater.outbox.partitions import Ensured, Purged, drop_partitions, ensure_partitions
from headwater.outbox.relay.settings import RelaySettings
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.statements import fetch_sync

_log = logging.getLogger(__name__)


class Maintenance:
    """At the start and then now and again, on a connection and in a thread of its own. What cannot be done is said once."""

    def __init__(self, url: str, settings: RelaySettings) -> None:
        self._url, self._settings = url, settings
        self._said: set[str] = set()

    async def run(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.maintain)
            except ConnectionLost as exc:
                self._say(f"the partitions of the outbox cannot be looked after: {exc}")
            await asyncio.sleep(self._settings.maintain_every.total_seconds())

    def maintain(self) -> tuple[Ensured, Purged]:
        """Make what is missing, and drop what is old; rows that are not published, dead ones too, keep their partition."""
        settings = self._settings
        with translated(self._url), closing(connect_sync(self._url)) as connection:
            # The present is left as it is: a relay starts while others write.
            ensured = ensure_partitions(
                connection, settings.partitions_ahead, settings.partition_length, spares_present=True
            )
            purged = Purged((), (), 0)
            if settings.retention is not None:
                (now,) = fetch_sync(connection, statements.read_clock())
                purged = drop_partitions(connection, now - settings.retention)
        for missing in ensured.missing:
            self._say(f"partition {missing.name} of the outbox was not made: {missing.reason}")
        for kept in purged.kept:
            self._say(f"partition {kept.name} of the outbox is old and was kept: {kept.reason}")
        if purged.dropped:
            _log.info("%d partitions of the outbox were dropped, whose events were all published", len(purged.dropped))
        return ensured, purged

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            _log.warning("%s", sentence)
