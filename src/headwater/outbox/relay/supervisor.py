"""Tasks that are started again when they fail, so often within a time, and then stop everything."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from headwater.errors import RelayFailed
from headwater.outbox.relay.backoff import full_jitter
from headwater.outbox.relay.counts import Counts

_log = logging.getLogger(__name__)

_RESTART: Final = (timedelta(milliseconds=100), timedelta(seconds=5))


class Intensity:
    """Whether something has happened too often within a time. Pure."""

    def __init__(self, most: int, within: timedelta) -> None:
        self._most, self._within = most, within.total_seconds()
        self._times: deque[float] = deque()

    def note(self, now: float) -> int:
        """Count one more; returns how many there were within the time."""
        self._times.append(now)
        while self._times and self._times[0] <= now - self._within:
            self._times.popleft()
        return len(self._times)

    @property
    def is_exceeded(self) -> bool:
        return len(self._times) > self._most


class Supervisor:
    """Runs tasks by name until it is stopped, or until one of them has failed too often."""

    def __init__(self, restarts: int, within: timedelta, counts: Counts) -> None:
        self._restarts, self._within, self._counts = restarts, within, counts
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks[name] = asyncio.create_task(self._watch(name, work), name=f"outbox {name}")

    @property
    def failure(self) -> BaseException | None:
        """Why it has ended by itself, if it has."""
        return self._ended.exception() if self._ended.done() and not self._ended.cancelled() else None

    async def wait(self) -> None:
        """Return when it is stopped; raise when a task has failed for good."""
        await asyncio.shield(self._ended)

    async def finished(self, name: str, seconds: float) -> None:
        """Wait for a task to end by itself, for so long."""
        if (task := self._tasks.get(name)) is not None:
            await asyncio.wait([task], timeout=seconds)

    async def cancel(self, *names: str) -> None:
        """End some tasks, and wait until they have."""
        tasks = [task for name in names if (task := self._tasks.pop(name, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        await self.cancel(*self._tasks)
        if not self._ended.done():
            self._ended.set_result(None)

    async def _watch(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        intensity = Intensity(self._restarts, self._within)
        while True:
            try:
                await work()
            except Exception as exc:  # noqa: BLE001 - that is what a supervisor is for
                failures = intensity.note(time.monotonic())
                if intensity.is_exceeded:
                    self._fail(name, exc, failures)
                    return
                self._counts.restarts += 1
                _log.warning("the task %s of the relay failed and is started again: %s", name, exc)
                _log.debug("the task failed", exc_info=exc)
                await asyncio.sleep(full_jitter(*_RESTART, failures, random.random()))
            else:
                return

    def _fail(self, name: str, error: Exception, failures: int) -> None:
        if self._ended.done():
            return
        failed = RelayFailed(name, failures, self._within, str(error) or type(error).__name__)
        failed.__cause__ = error
        self._ended.set_exception(failed)
        # Also where nobody waits for it: it is logged, and told by `stop`.
        self._ended.exception()
        _log.error("%s", failed)
