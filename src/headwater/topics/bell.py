"""Waking those who wait for a topic, after commits: at most once in a time, and in nobody's way."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from headwater.errors import HeadwaterError
from headwater.postgres.session import leave
from headwater.topics import produce_statements
from headwater.topics.produce_settings import ProducerSettings
from headwater.topics.session import TopicSession

_log = logging.getLogger(__name__)


class Bell:
    """Asked after each commit, it rings at once if it has not rung of late, and otherwise when the time has come.

    What cannot be rung is forgotten: whoever waits for a topic looks now and again by itself.
    """

    def __init__(self, url: str, topic_id: int, settings: ProducerSettings) -> None:
        self._session = TopicSession(url, "headwater bell", settings.answer_within)
        self._topic_id, self._every = topic_id, settings.ring_every.total_seconds()
        self._partitions: set[int] = set()
        self._woken, self._closing = asyncio.Event(), asyncio.Event()
        self._ringer = asyncio.create_task(self._run(), name=f"bell of topic {topic_id}")

    def ring(self, partitions: Iterable[int]) -> None:
        """For those who read some partitions."""
        self._partitions.update(partitions)
        self._woken.set()

    async def close(self) -> None:
        """Ring a last time if that was asked for."""
        self._closing.set()
        self._woken.set()
        await leave(self._ringer, self._session, seconds=1)

    async def _run(self) -> None:
        while self._partitions or not self._closing.is_set():
            if self._partitions:
                await self._ring()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), self._every)
            else:
                self._woken.clear()
                await self._woken.wait()

    async def _ring(self) -> None:
        partitions, self._partitions = self._partitions, set()
        try:
            await self._session.fetch(produce_statements.ring_aside(self._topic_id, partitions))
        except HeadwaterError as exc:
            _log.debug("those who wait for the topic were not woken: %s", exc)
