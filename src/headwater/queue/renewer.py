"""Leases are renewed by a thread with a connection of its own: a handler that blocks the event loop does not block that."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event, Thread, Timer

from headwater import failpoints
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.session import hang_up
from headwater.postgres.statements import fetch_sync
from headwater.queue import work_statements
from headwater.queue.counts import Counts
from headwater.queue.held import Held, Holding

_log = logging.getLogger(__name__)


class Renewer:
    """Connects when there is something to renew for the first time: jobs that are quick need none of it."""

    def __init__(self, url: str, lease: timedelta, held: Held, counts: Counts) -> None:
        self._url, self._lease, self._held, self._counts = url, lease, held, counts
        self._connection: Connection | None = None
        self._stopping = Event()
        self._loop = asyncio.get_running_loop()
        # When the event loop was last seen to go on, by the monotonic clock.
        self._seen_at = time.monotonic()
        self._thread = Thread(target=self._run, name="headwater queue leases", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, self._lease.total_seconds())

    def _run(self) -> None:
        # Some looks within a third of a lease, so that none is renewed much too late.
        every = self._lease.total_seconds() / 12
        # A worker that was abandoned with its event loop has nothing to renew.
        while not self._stopping.wait(every) and not self._loop.is_closed():
            now = time.monotonic()
            self._soon(self._see)
            if due := self._held.due(now, is_blocked=now - self._seen_at > self._lease.total_seconds()):
                self._renew(due)
        if self._connection is not None:
            self._connection.close()

    def _renew(self, due: Sequence[Holding]) -> None:
        began = time.monotonic()
        try:
            failpoints.hit("queue.lease_renewal")
            if self._connection is None or self._connection.closed:
                self._connection = connect_sync(self._url, application_name="headwater queue leases")
                # What is prepared belongs to a session, and a pooler gives each transaction another one.
                self._connection.prepare_threshold = None
            statement = work_statements.renew([one.job for one in due], self._lease)
            with _hanging_up(self._connection, self._lease.total_seconds() / 3):
                renewed = {one.id: one.is_cancelled for one in fetch_sync(self._connection, statement)}
        except Exception as exc:  # noqa: BLE001 - without this thread all leases would lapse
            _log.warning("leases of %d jobs were not renewed: %s", len(due), exc)
            if self._connection is not None:
                self._connection.close()
            return
        for holding in due:
            if holding.job.id in renewed:
                holding.renewed_at = began
        if not self._stopping.is_set():
            self._soon(self._told, due, renewed)

    def _soon(self, function: Callable[..., None], *given: object) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *given)

    def _see(self) -> None:
        self._seen_at = time.monotonic()

    def _told(self, due: Sequence[Holding], renewed: dict[int, bool]) -> None:
        """In the event loop: what is not ours any more, or is to be cancelled, is stopped."""
        self._counts.renewed += len(renewed)
        for holding in due:
            # One that has ended meanwhile is marked by now, or hears then what it is.
            has_ended = holding.began_at is not None and holding.task is None
            if has_ended or self._held.find(holding.job.id) is not holding:
                continue
            if holding.job.id not in renewed:
                holding.is_lost = True
                self._counts.leases_lost += 1
                _log.warning("job %d is another worker's by now, its lease had ended; it is stopped here", holding.job.id)
                holding.interrupt()
            elif renewed[holding.job.id]:
                holding.is_cancelled = True
                holding.interrupt()


@contextmanager
def _hanging_up(connection: Connection, seconds: float) -> Iterator[None]:
    """Give up a server that does not answer for so long: a network that swallows everything gives no sign."""
    timer = Timer(seconds, hang_up, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
