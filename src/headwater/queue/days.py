"""Days of finished jobs: made ahead, and dropped when they are old."""

import asyncio
import logging
from datetime import timedelta
from typing import Final

import psycopg

from headwater.errors import HeadwaterError
from headwater.postgres.connect import connect
from headwater.postgres.latest import bound_waiting, latest
from headwater.postgres.statements import fetch
from headwater.queue import work_statements
from headwater.queue.settings import WorkerSettings

_log = logging.getLogger(__name__)

# Who waits for a lock makes all others wait behind; what is not done now is done the next time.
_LOCK_WITHIN: Final = timedelta(milliseconds=500)


async def look_after_days(url: str, settings: WorkerSettings) -> None:
    """For ever; what fails is tried the next time, and days that are missing until then have a place of their own."""
    while True:
        try:
            async with await connect(url, application_name="headwater queue days") as connection, latest(connection):
                await fetch(connection, bound_waiting(_LOCK_WITHIN))
                await fetch(connection, work_statements.keep_days(settings.keep_done))
            await _forget(url, settings.keep_done)
        except (psycopg.Error, HeadwaterError) as exc:
            _log.warning("days of finished jobs were not looked after, and are the next time: %s", exc)
        await asyncio.sleep(settings.maintain_every.total_seconds())


async def _forget(url: str, kept: timedelta) -> None:
    """What is in no day, some at a time."""
    async with await connect(url, application_name="headwater queue days") as connection:
        while True:
            async with latest(connection):
                (was_all,) = await fetch(connection, work_statements.forget(kept))
            if was_all:
                return
