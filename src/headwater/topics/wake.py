"""Waiting for messages: polls come after ever longer waits while nothing comes, and at once when the bell is rung."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from headwater.topics.subscribe_settings import SubscriberSettings


class Wake:
    """What it hears is only when to look; nothing is missed by one who hears nothing.

    While messages are found when the bell has rung, and not otherwise, nobody looks without it but for the longest wait.
    `concerns` says whether news of some partitions, or of any if none are named, may be for the one who waits.
    """

    def __init__(self, settings: SubscriberSettings, concerns: Callable[[Sequence[int]], bool] = lambda _: True) -> None:
        self._least, self._longest = settings.poll_least.total_seconds(), settings.poll_longest.total_seconds()
        self._concerns = concerns
        self._wait = self._least
        # Of the last poll: when it began, and the end of the pause after it.
        self._began = self._paused_until = 0.0
        self._rung = asyncio.Event()
        self._was_rung = self._is_rung_for_all = self._is_expecting = False

    def ring(self, partitions: Sequence[int]) -> None:
        """There is news of some partitions, or of any."""
        if self._concerns(partitions):
            self._rung.set()

    def deafen(self) -> None:
        """The bell is not heard any more."""
        self._is_rung_for_all = False

    def begin(self) -> None:
        """A poll; who rings from now on is heard."""
        self._began = time.monotonic()
        self._was_rung = self._rung.is_set()
        self._rung.clear()

    def answered(self) -> None:
        """Others are left twice the time that it took: then polls have more to find, the busier the server is."""
        now = time.monotonic()
        self._paused_until = max(self._began + self._least, now + min(2 * (now - self._began), self._longest))

    def end(self, *, has_found: bool, is_coming: bool = False) -> None:
        """What is coming has rung already, and does not ring again when it is there."""
        if has_found or (is_coming and not self._is_expecting):
            self._wait, self._is_rung_for_all = self._least, self._was_rung and not is_coming
        self._is_expecting = is_coming

    async def pause(self) -> None:
        """Before a poll that follows upon another: leave time for more to come."""
        await asyncio.sleep(self._paused_until - time.monotonic())

    async def wait(self) -> None:
        """After a poll that found nothing, or nothing more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._longest if self._is_rung_for_all else self._wait):
                await self._rung.wait()
        await self.pause()
        self._wait = min(self._longest, 2 * self._wait)
