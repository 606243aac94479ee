"""A relay at work: its queues, its tasks and its connections, from start to stop."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from headwater.brokers.base import Broker
from headwater.errors import HeadwaterError
from headwater.outbox.event import EncodedEvent
from headwater.outbox.relay.age import Age
from headwater.outbox.relay.availability import Availability
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.database import Database
from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.failures import Failures
from headwater.outbox.relay.intake import Intake
from headwater.outbox.relay.ledger import Ledger
from headwater.outbox.relay.leftover import Leftover
from headwater.outbox.relay.outcome import Judge
from headwater.outbox.relay.publisher import Desk, Publisher
from headwater.outbox.relay.retry import RetryQueue, Suspects
from headwater.outbox.relay.reviver import Reviver
from headwater.outbox.relay.saver import Saver
from headwater.outbox.relay.session import GIVE_UP_WITHIN, Session
from headwater.outbox.relay.settings import RelaySettings
from headwater.outbox.relay.supervisor import Supervisor
from headwater.outbox.relay.thread import BrokerThread

_log = logging.getLogger(__name__)

# Of the time for a stop, what is kept for writing down what is known then: so long, or half of it if it is short.
_SAVE_SECONDS = 1.0
# Also when the time is up, a database that is there gets a chance.
_LEAST_SECONDS = 0.1


class Running:
    """Made and used in one event loop; only `take` is for any thread."""

    def __init__(self, url: str, brokers: Sequence[Broker], instance: str, settings: RelaySettings, counts: Counts) -> None:
        self.is_taking = True
        self._settings, self._counts = settings, counts
        self._loop = asyncio.get_running_loop()
        self.availability = Availability(counts)
        self._ledger = Ledger()
        self._intake = Intake(settings.intake_events, settings.intake_bytes)
        suspects = Suspects()
        self._retries = RetryQueue(settings.retry_events, settings.retry_bytes, suspects)
        self.database = Database(counts)
        self._sessions = [Session(url, self.database) for _ in range(3)]
        self._saver = Saver(self._sessions[0], instance, settings, self._ledger, counts)
        self._failures = Failures(self._loop.call_later)
        self._desk = Desk(Judge(settings), self._saver, self._retries, suspects, self._ledger, self._failures, counts)
        self._threads = [BrokerThread(broker, name) for broker, name in zip(brokers, ("publisher", "retry"), strict=True)]
        shared = (self._desk, self.availability, settings, counts)
        self._publisher = Publisher(self._intake, self._threads[0], *shared)
        self._retrier = Publisher(self._retries, self._threads[1], *shared)
        self._reviver = Reviver(
            self._sessions[1], instance, settings, self._retries, self._ledger, self.availability, counts
        )
        self._age = Age(self._sessions[2], counts)
        self.supervisor = Supervisor(settings.restarts, settings.restarts_within, counts)

    @property
    def fills(self) -> dict[str, int]:
        """How many events wait in each queue."""
        return {"intake": len(self._intake), "retry": len(self._retries), "save": len(self._saver)}

    def has_room(self, events: int) -> bool:
        """Whether so many rows that are written now are for this instance to send; for any thread."""
        if not self.is_taking or not self.availability.is_up:
            return False
        if not self._intake.has_room(events):
            # What has no room is found in the table: a lease would only have to be given back before.
            self._counts.let_go += events
            return False
        return True

    async def meet_broker(self) -> None:
        """Find out whether the broker is there; raises if it does not let us in."""
        await self._publisher.meet()

    def start(self) -> None:
        for name, work in (
            ("saver", self._saver.run),
            ("publisher", self._publisher.run),
            ("retry", self._retrier.run),
            ("reviver", self._reviver.run),
            ("age", self._age.run),
        ):
            self.supervisor.start(name, work)

    def wake(self) -> None:
        """Something is in the table that nobody holds."""
        self._reviver.wake()

    def take(self, events: Sequence[EncodedEvent], created_us: Sequence[int], deadline: float) -> None:
        """Events of a transaction that has just committed."""
        now = time.monotonic()
        entries = [Entry.of(event, when, deadline, now) for event, when in zip(events, created_us, strict=True)]
        for entry in entries:
            self._ledger.add(entry)
        if self.is_taking:
            self._intake.put(entries)
        else:
            # A loop that has ended gives nothing back; then the lease ends by itself.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._desk.let_go, entries)

    async def stop(self, seconds: float) -> Leftover:
        """Take nothing more, send and write down what there is for so long, and give back the rest."""
        deadline = time.monotonic() + seconds
        drained = deadline - min(_SAVE_SECONDS, seconds / 2)
        self.is_taking = False
        self._saver.hasten()
        await self.supervisor.cancel("reviver", "age")
        await self._reviver.finish(drained - time.monotonic())
        await self._drain(drained - time.monotonic())
        await self.supervisor.cancel("publisher", "retry")
        queued = self._intake.take_all() + self._retries.take_all()
        self._desk.let_go(queued)
        await self.supervisor.cancel("saver")
        await self._flush(max(deadline - GIVE_UP_WITHIN.total_seconds() - time.monotonic(), _LEAST_SECONDS))
        in_flight = max(len(self._ledger) - len(self._saver), 0)
        leftover = Leftover(len(queued), in_flight, self._saver.count_published)
        await self.close()
        return leftover

    async def close(self) -> None:
        self._failures.close()
        for thread in self._threads:
            thread.close()
        for session in self._sessions:
            await session.close()
        await self.supervisor.stop()

    async def _drain(self, seconds: float) -> None:
        """Wait until nothing is in memory; or for less, if nothing will come of it."""
        waits = [asyncio.create_task(work) for work in (self._ledger.empty(), self.availability.down(), self._failed())]
        await asyncio.wait(waits, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _failed(self) -> None:
        try:
            await self.supervisor.wait()
        except HeadwaterError:
            return

    async def _flush(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._saver.flush()
        except Exception as exc:  # noqa: BLE001 - whatever it is, the rest of the stop goes on
            reason = str(exc) or type(exc).__name__
            _log.warning("what became of %d events could not be written down: %s", len(self._saver), reason)
