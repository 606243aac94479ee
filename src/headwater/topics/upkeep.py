"""Looking after the segments of a topic now and again, from inside of a process that appends to it or reads it."""

import asyncio
import logging
from contextlib import closing, suppress
from datetime import timedelta
from threading import Thread

import psycopg

from headwater.errors import HeadwaterError
from headwater.postgres.connect import connect_sync, translated
from headwater.topics.retention import maintain
from headwater.topics.topic import find_sync

_log = logging.getLogger(__name__)


class Upkeep:
    """On a connection and in a thread of its own; any number of processes may do it.

    What cannot be done is said once, and tried again the next time. Messages come and go all the same, so that no failure
    here is one of the process.
    """

    def __init__(self, url: str, topic: str, every: timedelta) -> None:
        self._url, self._topic, self._every = url, topic, every
        self._said: set[str] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every.total_seconds())
            await self._aside()

    def maintain(self) -> None:
        try:
            with translated(self._url), closing(connect_sync(self._url)) as connection:
                done = maintain(connection, find_sync(connection, self._topic))
        except psycopg.errors.InsufficientPrivilege as exc:
            self._say(f"this role may not: {exc.diag.message_primary}; have a process of the owner of the tables do it")
        except HeadwaterError as exc:
            self._say(str(exc))
        except Exception as exc:  # noqa: BLE001 - whatever it is, messages come and go without it
            self._say((str(exc).splitlines() or [type(exc).__name__])[0])
            _log.debug("the upkeep of topic %s failed", self._topic, exc_info=exc)
        else:
            for hindrance in done.hindrances:
                self._say(hindrance)
            if done.dropped:
                _log.info("%d segments of topic %s were dropped", len(done.dropped), self._topic)

    async def _aside(self) -> None:
        """Maintain in a thread that, unlike those of asyncio, keeps no process whose database does not answer."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def work() -> None:
            self.maintain()
            # A loop that has ended wants to know nothing.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(done.set)

        Thread(target=work, name=f"upkeep of topic {self._topic}", daemon=True).start()
        await done.wait()

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            _log.warning("the segments of topic %s cannot be looked after: %s", self._topic, reason)
