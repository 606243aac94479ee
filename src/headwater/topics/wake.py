"""Waiting for messages: polls come after ever longer waits while nothing comes, and at once when the bell is rung."""

import asyncio
import logging
import time
from contextlib import aclosing, suppress

from headwater.errors import HeadwaterError
from headwater.postgres.listen import ListenSettings, listen
from headwater.topics.subscribe_settings import SubscriberSettings

_log = logging.getLogger(__name__)


class Wake:
    """What it hears is only when to look; nothing is missed by one who hears nothing."""

    def __init__(self, settings: SubscriberSettings) -> None:
        self._least, self._longest = settings.poll_least.total_seconds(), settings.poll_longest.total_seconds()
        self._wait = self._least
        self._polled = 0.0
        self._rung = asyncio.Event()

    async def listen(self, url: str, topic_id: int) -> None:
        """Hear the bell of a topic, until cancelled."""
        settings = ListenSettings(url=url, channels=[f"headwater_topic_{topic_id}"], application_name="headwater bell")
        try:
            async with aclosing(listen(settings)) as heard:
                async for _ in heard:
                    self._rung.set()
        except HeadwaterError as exc:
            _log.warning("the bell of a topic cannot be heard, and messages are noticed by polling: %s", exc)

    async def pace(self) -> None:
        """Before a poll that follows upon one which found something: leave time for more to come."""
        await asyncio.sleep(self._polled + self._least - time.monotonic())

    def polled(self) -> None:
        """Just now; who rings from now on is heard."""
        self._polled = time.monotonic()
        self._rung.clear()

    def found(self) -> None:
        self._wait = self._least

    async def wait(self) -> None:
        """After a poll that found nothing."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait):
                await self._rung.wait()
        await self.pace()
        self._wait = min(self._longest, 2 * self._wait)
