"""The partitions of a table that relays serve: made ahead, and dropped when all in them was published long ago."""

import asyncio
import logging
from contextlib import closing, suppress
from threading import Thread

import psycopg

from headwater.errors import HeadwaterError
from headwater.outbox import statements
from headwater.outbox.partitions import Ensured, Purged, drop_partitions, ensure_partitions
from headwater.outbox.relay.settings import RelaySettings
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.statements import fetch_sync

_log = logging.getLogger(__name__)


class Maintenance:
    """At the start and then now and again, on a connection and in a thread of its own.

    What cannot be done is said once, and tried again the next time. Events are sent all the same, so that no failure here is
    one of the relay.
    """

    def __init__(self, url: str, settings: RelaySettings) -> None:
        self._url, self._settings = url, settings
        self._said: set[str] = set()

    async def run(self) -> None:
        while True:
            try:
                await self._aside()
            except HeadwaterError as exc:
                self._say(f"the partitions of the outbox cannot be looked after: {exc}")
            except psycopg.errors.InsufficientPrivilege as exc:
                # As is meant for a role that was granted to relay and no more.
                self._say(
                    f"the partitions of the outbox cannot be looked after by this role: {exc.diag.message_primary}; have "
                    "`headwater outbox purge` run by the owner of the table",
                    logging.INFO,
                )
            except Exception as exc:  # noqa: BLE001 - whatever it is, the events are sent without it
                reason = (str(exc).splitlines() or [type(exc).__name__])[0]
                self._say(f"the partitions of the outbox cannot be looked after: {reason}")
                _log.debug("the maintenance of the outbox failed", exc_info=exc)
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

    async def _aside(self) -> None:
        """Maintain in a thread that, unlike those of asyncio, keeps no process whose database does not answer."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def work() -> None:
            error: Exception | None = None
            try:
                self.maintain()
            except Exception as exc:  # noqa: BLE001 - it is the caller's
                error = exc
            # A loop that has ended wants to know nothing.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_tell, done, error)

        Thread(target=work, name="outbox maintenance", daemon=True).start()
        await done

    def _say(self, sentence: str, level: int = logging.WARNING) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            _log.log(level, "%s", sentence)


def _tell(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
