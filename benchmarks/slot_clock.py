"""A clock that a replication slot starts: when somebody begins to read it, and when it is confirmed up to a position."""

import time
from threading import Event, Thread
from types import TracebackType

from benchmarks.statements import slot_state
from headwater.model import Lsn
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync

# The start is waited for closely; whoever reads is left in peace while it works.
_START_SECONDS = 0.002
_END_SECONDS = 0.02
_PATIENCE_SECONDS = 1800.0


class SlotClock:
    """Watches a slot in a thread of its own while in use; with `end` also for its confirmation up to there."""

    def __init__(self, url: str, slot: str, end: Lsn | None = None) -> None:
        self._url, self._slot, self._end = url, slot, end
        self._watching, self._leaving = Event(), Event()
        self._thread = Thread(target=self._watch, name=f"clock {slot}", daemon=True)
        self._started: float | None = None
        self._confirmed: float | None = None

    def __enter__(self) -> "SlotClock":
        self._thread.start()
        self._watching.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leaving.set()
        self._thread.join()

    @property
    def started(self) -> float:
        """When the slot was first seen active."""
        if self._started is None:
            raise RuntimeError(f"nobody was seen reading slot {self._slot}")
        return self._started

    def wait_until_confirmed(self) -> float:
        """When the slot was first seen confirmed; waits for it."""
        self._thread.join(_PATIENCE_SECONDS)
        if self._confirmed is None:
            raise RuntimeError(f"slot {self._slot} was not confirmed up to {self._end} in {_PATIENCE_SECONDS:.0f} s")
        return self._confirmed

    def _watch(self) -> None:
        with connect_sync(self._url) as connection:
            self._watching.set()
            while self._confirmed is None and not self._leaving.is_set():
                (state,) = fetch_sync(connection, slot_state(self._slot))
                now = time.perf_counter()
                if self._started is None and state.active:
                    self._started = now
                if self._started is not None and self._end is None:
                    return
                if self._end is not None and state.confirmed_flush_lsn >= self._end:
                    self._confirmed = now
                self._leaving.wait(_START_SECONDS if self._started is None else _END_SECONDS)
