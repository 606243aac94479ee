"""Hearing the bell of a topic, for all who read it over one line."""

import asyncio
import logging
from contextlib import aclosing

from headwater.errors import HeadwaterError
from headwater.postgres.listen import Listening, ListenSettings, listen
from headwater.topics.wake import Wake

_log = logging.getLogger(__name__)


class Ear:
    """One connection that listens while there is somebody to be woken: PostgreSQL wakes each that does for each bell."""

    def __init__(self, url: str, topic_id: int) -> None:
        self._settings = ListenSettings(url=url, channels=[f"headwater_topic_{topic_id}"], application_name="headwater bell")
        self._wakes: list[Wake] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, wake: Wake) -> None:
        self._wakes.append(wake)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(), name=f"ear on {self._settings.channels[0]}")

    async def remove(self, wake: Wake) -> None:
        self._wakes.remove(wake)
        if not self._wakes:
            await self.close()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _listen(self) -> None:
        try:
            async with aclosing(listen(self._settings)) as heard:
                async for one in heard:
                    # What was rung before is not known.
                    partitions = [] if isinstance(one, Listening) else partitions_of(one.payload)
                    for wake in self._wakes:
                        wake.ring(partitions)
        except HeadwaterError as exc:
            for wake in self._wakes:
                wake.deafen()
            _log.warning("the bell of a topic cannot be heard, and messages are noticed by polling: %s", exc)


def partitions_of(payload: str) -> list[int]:
    """Which partitions a notification is about; none are named where it may be any. Pure."""
    return [int(one) for one in payload.split(",") if one.isdecimal()]
