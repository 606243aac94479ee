"""Hearing that there are jobs, or that one is to be cancelled. What is missed is found by looking."""

import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from headwater.errors import HeadwaterError
from headwater.postgres.listen import Listening, ListenSettings, listen

_log = logging.getLogger(__name__)

_JOBS: Final = "headwater_queue"
_CANCEL: Final = "headwater_queue_cancel"
# Of no id; anybody may notify, of anything.
_DIGITS: Final = 20


async def hear(url: str, on_jobs: Callable[[str | None], None], on_cancel: Callable[[int | None], None]) -> None:
    """Tell of queues that were rung for and of jobs to be cancelled; with None, that any may have been. Until cancelled."""
    settings = ListenSettings(url=url, channels=[_JOBS, _CANCEL], application_name="headwater queue bell")
    try:
        async with aclosing(listen(settings)) as heard:
            async for one in heard:
                if isinstance(one, Listening):
                    on_jobs(None)
                    on_cancel(None)
                elif one.channel == _JOBS:
                    on_jobs(one.payload)
                elif one.payload.isdecimal() and len(one.payload) < _DIGITS:
                    on_cancel(int(one.payload))
    except HeadwaterError as exc:
        _log.warning("the bell of the queue cannot be heard, and jobs are noticed by polling: %s", exc)
