"""An event loop in a thread of its own, so that a blocking caller has a connection that lives between its calls."""

import asyncio
from collections.abc import Coroutine
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads. After a fork it is not alive in the child, which makes one of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # A caller who forgets to close it can still end.
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises; it is cancelled when the caller is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
