"""When to save a snapshot as the checkpoint: taken now and then, and saved once all that it sees is delivered."""

import time
from collections.abc import Callable
from datetime import timedelta

from headwater import failpoints
from headwater.model import Lsn, Snapshot
from headwater.outbox.checkpoint import CheckpointStore


class Saver:
    """Moves the checkpoint of a stream. It writes nothing while nothing is delivered."""

    def __init__(self, store: CheckpointStore, interval: timedelta, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._seconds, self._clock = store, interval.total_seconds(), clock
        self._taken: tuple[Snapshot, Lsn] | None = None
        self._delivered: Lsn | None = None
        self._next = clock() + self._seconds

    def take(self) -> None:
        """Look around now, however long ago that was done."""
        self._taken = self._store.look_around()

    def look(self, generation: str, delivered: Lsn, done: Lsn, timeline_of: Callable[[Lsn], int]) -> None:
        """Everything before `delivered` has been, and nothing of ours is left before `done`."""
        if self._delivered is None:
            self._delivered = delivered
        if self._taken is None and delivered > self._delivered and self._clock() >= self._next:
            self._delivered = delivered
            self.take()
        if self._taken is None:
            return
        snapshot, end = self._taken
        if max(delivered, done) >= end:
            failpoints.hit("outbox.checkpoint_save")
            self._store.save_snapshot(generation, snapshot, end, timeline_of(Lsn(max(0, end - 1))))
            self._taken, self._next = None, self._clock() + self._seconds
