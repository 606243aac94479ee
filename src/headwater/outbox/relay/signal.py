"""A signal that any thread gives and one event loop waits for; many that nobody has seen yet cost no more than one."""

import asyncio
from contextlib import suppress
from threading import get_ident


class Signal:
    """Belongs to the loop that it is made in. Look for what it is about after `clear`, and then wait."""

    def __init__(self) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._event = asyncio.Event()
        self._is_told = False

    def set(self) -> None:
        if self._is_told:
            return
        self._is_told = True
        if get_ident() == self._thread:
            self._event.set()
        else:
            # A loop that has ended has nobody who waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        # In this order: who sets it in between is heard.
        self._event.clear()
        self._is_told = False

    async def wait(self) -> None:
        await self._event.wait()
