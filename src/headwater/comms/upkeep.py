"""Removing what is on record for longer than it is to be kept, a part at a time."""

import asyncio
import logging
import random
from contextlib import suppress
from datetime import timedelta
from typing import Final, Self

from headwater.comms.session import CommsSession
from headwater.comms.statements import forget_attempts, forget_contents
from headwater.errors import HeadwaterError
from headwater.postgres.session import leave

_log = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 3600.0
_LEAVE_SECONDS: Final = 1.0
# Few enough that nobody waits for it.
_MOST: Final = 5000


class Upkeep:
    """Looks every hour, also where others do, from the beginning of a `with` to its end."""

    def __init__(self, url: str, keep: timedelta, answer_within: timedelta) -> None:
        self._session, self._keep = CommsSession(url, "headwater comms upkeep", answer_within), keep
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="comms upkeep")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._task is not None
        self._stopping.set()
        # Not cancelled at once: a connection that is just being made would be left to the server half open.
        await leave(self._task, self._session, _LEAVE_SECONDS)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            await self._look()
            with suppress(TimeoutError):
                # Not all at once.
                await asyncio.wait_for(self._stopping.wait(), _EVERY_SECONDS * random.uniform(0.5, 1.5))

    async def _look(self) -> None:
        try:
            for forget in (forget_attempts(self._keep, _MOST), forget_contents(self._keep, _MOST)):
                while await self._session.execute(forget) == _MOST:
                    pass
            # For the next hour it is of no use.
            await self._session.close()
        except HeadwaterError as exc:
            _log.warning(
                "old attempts and attachments of e-mails were not removed, which is tried again in an hour: %s", exc
            )
