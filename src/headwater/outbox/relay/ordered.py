"""A relay that keeps the order of keys: each lane is read from the table in order, by its one owner, and sent in order.

What was read is sent and written down before more is read, so nothing is in memory that could be overtaken.
"""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

import psycopg

from headwater.brokers.base import Broker, Published
from headwater.errors import BrokerError, ConnectionLost, HeadwaterError
from headwater.outbox import statements
from headwater.outbox.event import EncodedEvent
from headwater.outbox.relay.age import Age
from headwater.outbox.relay.availability import Availability
from headwater.outbox.relay.backoff import full_jitter
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.lanes import LaneKeeper
from headwater.outbox.relay.leftover import Leftover
from headwater.outbox.relay.messages import as_messages
from headwater.outbox.relay.reviver import FIRST_ROWS, as_entry, next_limit
from headwater.outbox.relay.saver import storable
from headwater.outbox.relay.session import Session
from headwater.outbox.relay.settings import RelaySettings
from headwater.outbox.relay.signal import Signal
from headwater.outbox.relay.supervisor import Supervisor
from headwater.outbox.relay.thread import BrokerThread
from headwater.outbox.relay.tracing import SendSpans

_log = logging.getLogger(__name__)

_ABSENCE: Final = (timedelta(milliseconds=100), timedelta(seconds=2))
_RECONNECT: Final = (timedelta(milliseconds=200), timedelta(seconds=5))


class OrderedPublisher:
    """Reads the lanes of an instance, sends what is due and writes it down, over and over."""

    def __init__(  # noqa: PLR0913 - the parts that it joins
        self,
        session: Session,
        broker: BrokerThread,
        keeper: LaneKeeper,
        woken: Signal,
        availability: Availability,
        settings: RelaySettings,
        counts: Counts,
    ) -> None:
        self._session, self._broker, self._keeper, self._woken = session, broker, keeper, woken
        self._availability, self._settings, self._counts = availability, settings, counts
        self._age = Age(session, counts)
        # How many to read at a time, by how large they turn out to be.
        self._rows = min(FIRST_ROWS, settings.claim_rows)
        # Sent, but not written down: before that, nothing more may be read.
        self.unsaved: list[tuple[Entry, str | None]] = []
        self.is_draining = False

    async def run(self) -> None:
        """Until it is cancelled; or until nothing is due, when it is told to drain."""
        broker_failures = database_failures = 0
        while True:
            self._woken.clear()
            try:
                is_done = await self._round()
                broker_failures = database_failures = 0
            except BrokerError as exc:
                broker_failures += 1
                self._availability.lost(exc)
                await asyncio.sleep(full_jitter(*_ABSENCE, broker_failures, random.random()))
            except ConnectionLost as exc:
                database_failures += 1
                if database_failures == 1:
                    _log.warning("the outbox cannot be read or written: %s", exc)
                await asyncio.sleep(full_jitter(*_RECONNECT, database_failures, random.random()))
            else:
                if is_done and self.is_draining:
                    return
                if is_done:
                    await self._wait()

    async def _round(self) -> bool:
        """One batch from the table to the broker and back; whether there was no more than that."""
        await self._save()
        lanes = self._keeper.mine_until(time.monotonic() + self._settings.confirm_timeout.total_seconds())
        if not lanes:
            return True
        limit = self._rows
        found = await self._session.fetch(statements.read_lanes(lanes, self._settings.lanes, limit))
        if found:
            await self._send([as_entry(one, deadline=0.0) for one in found])
            await self._save()
            self._rows = next_limit(limit, sum(len(one.payload) for one in found), self._settings.claim_rows)
        await self._age.measure()
        await self._keeper.give_up_excess()
        return len(found) < limit

    async def _send(self, entries: list[Entry]) -> None:
        self._counts.in_flight = len(entries)
        spans = SendSpans(entries)
        try:
            published = await self._broker.publish(lambda: as_messages(entries))
        except BaseException as exc:
            spans.fail(str(exc))
            raise
        finally:
            self._counts.in_flight = 0
        spans.end({one.index: one.reason for one in published.refused})
        self._availability.found()
        self._settle(entries, published)

    def _settle(self, entries: Sequence[Entry], published: Published) -> None:
        refused = {one.index: one.reason for one in published.refused}
        for index, entry in enumerate(entries):
            entry.tries += 1
            self.unsaved.append((entry, refused.get(index)))
        counts = self._counts
        counts.published += len(entries) - len(refused)
        counts.duplicates += published.duplicates
        counts.returns += len(refused)
        counts.dead += len(refused)

    async def _save(self) -> None:
        """Write down what was sent; what nobody takes is dead, and holds up nothing."""
        sent = [entry for entry, reason in self.unsaved if reason is None]
        dead = [(entry, reason) for entry, reason in self.unsaved if reason is not None]
        if sent:
            saved = await self._session.execute(
                statements.save_published(
                    [one.id for one in sent], [one.created_us for one in sent], [one.tries for one in sent]
                )
            )
            self._counts.saves += 1
            self._counts.suspected_duplicates += len(sent) - saved
            self.unsaved = [(entry, reason) for entry, reason in dead]
        if dead:
            await self._session.execute(
                statements.save_unpublished(
                    None,
                    [one.id for one, _ in dead],
                    [one.created_us for one, _ in dead],
                    ["dead"] * len(dead),
                    [one.tries for one, _ in dead],
                    [None] * len(dead),
                    [storable(reason) for _, reason in dead],
                )
            )
            self._counts.saves += 1
        self.unsaved = []

    async def _wait(self) -> None:
        # Many transactions that wake it at once have one round in common.
        await asyncio.sleep(self._settings.send_every.total_seconds())
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.revive_every.total_seconds()):
                await self._woken.wait()


class RunningOrdered:
    """The relay at work where it keeps the order of keys; used as `Running` is."""

    def __init__(self, url: str, brokers: Sequence[Broker], instance: str, settings: RelaySettings, counts: Counts) -> None:
        self.is_taking = True
        self.availability = Availability(counts)
        self._woken = Signal()
        self._sessions = [Session(url), Session(url)]
        self._thread = BrokerThread(brokers[0], "publisher")
        self._keeper = LaneKeeper(self._sessions[0], instance, settings, self._woken)
        self._publisher = OrderedPublisher(
            self._sessions[1], self._thread, self._keeper, self._woken, self.availability, settings, counts
        )
        self._counts = counts
        self.supervisor = Supervisor(settings.restarts, settings.restarts_within, counts)

    @property
    def fills(self) -> dict[str, int]:
        return {"intake": 0, "retry": 0, "save": len(self._publisher.unsaved)}

    def has_room(self, events: int) -> bool:
        """Never: rows are for the owner of their lane."""
        return False

    def start(self) -> None:
        self.supervisor.start("lanes", self._keeper.run)
        self.supervisor.start("publisher", self._publisher.run)

    def wake(self) -> None:
        self._woken.set()

    def take(self, events: Sequence[EncodedEvent], created_us: Sequence[int], deadline: float) -> None:
        self.wake()

    async def stop(self, seconds: float) -> Leftover:
        """Send what is due in our lanes, for so long, and leave them to others."""
        self.is_taking = False
        self._publisher.is_draining = True
        self._woken.set()
        await self.supervisor.finished("publisher", seconds)
        in_flight = self._counts.in_flight
        await self.supervisor.cancel("publisher", "lanes")
        await self._leave()
        for session in self._sessions:
            await session.close()
        self._thread.close()
        await self.supervisor.stop()
        return Leftover(0, in_flight, len(self._publisher.unsaved))

    async def _leave(self) -> None:
        """Not while something may still be sent: then the lanes are others' when their lease ends."""
        if self._thread.is_busy:
            return
        try:
            async with asyncio.timeout(1.0):
                await self._keeper.leave()
        except (HeadwaterError, psycopg.Error, TimeoutError) as exc:
            _log.warning("the lanes of the outbox could not be given up, and are free when their lease ends: %s", exc)
