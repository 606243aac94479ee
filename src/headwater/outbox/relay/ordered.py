"""A relay that keeps the order of keys: each lane is read from the table in order, by its one owner, and sent in order.

What was read is sent and written down before more is read, so nothing is in memory that could be overtaken. What the broker
does not take waits in the table, and its key with it; the others go on.
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

from headwater import failpoints
from headwater.brokers.base import Broker, Offered
from headwater.errors import BrokerError, BrokerUnavailable, ConnectionLost, HeadwaterError
from headwater.outbox import statements
from headwater.outbox.event import EncodedEvent
from headwater.outbox.relay.age import Age
from headwater.outbox.relay.availability import Availability
from headwater.outbox.relay.backoff import full_jitter
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.database import Database
from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.failures import Failures
from headwater.outbox.relay.lanes import LaneKeeper
from headwater.outbox.relay.leftover import Leftover
from headwater.outbox.relay.order import OrderedJudge
from headwater.outbox.relay.outcome import Outcome, Unpublished
from headwater.outbox.relay.publisher import is_answered
from headwater.outbox.relay.reviver import FIRST_ROWS, as_entry, next_limit
from headwater.outbox.relay.saver import storable
from headwater.outbox.relay.session import Session
from headwater.outbox.relay.settings import RelaySettings
from headwater.outbox.relay.signal import Signal
from headwater.outbox.relay.supervisor import Supervisor
from headwater.outbox.relay.thread import BrokerThread
from headwater.outbox.relay.tracing import SendSpans

_log = logging.getLogger(__name__)

_RECONNECT: Final = (timedelta(milliseconds=200), timedelta(seconds=5))
# Of the time for a stop, what is kept for giving up the lanes: so long, or half of it if it is short.
_LEAVE_SECONDS: Final = 1.0


class OrderedPublisher:
    """Reads the lanes of an instance, sends what is due and writes it down, over and over."""

    def __init__(  # noqa: PLR0913 - the parts that it joins
        self,
        session: Session,
        broker: BrokerThread,
        keeper: LaneKeeper,
        woken: Signal,
        availability: Availability,
        failures: Failures,
        settings: RelaySettings,
        counts: Counts,
    ) -> None:
        self._session, self._broker, self._keeper, self._woken = session, broker, keeper, woken
        self._availability, self._failures, self._settings, self._counts = availability, failures, settings, counts
        self._judge = OrderedJudge(settings)
        # How many to read at a time, by how large they turn out to be.
        self._rows = min(FIRST_ROWS, settings.claim_rows)
        # What became of events and is not written down: before that, nothing more may be read.
        self._sent: list[Entry] = []
        self._unpublished: list[Unpublished] = []
        # By the monotonic clock: when the first of those is due that were not taken, and when the table may be read again.
        self._due = self._rested = 0.0
        self.is_draining = False

    @property
    def unsaved(self) -> int:
        """How many were settled by the broker, and are not written down."""
        return len(self._sent) + len(self._unpublished)

    async def run(self) -> None:
        """Until it is cancelled; or until nothing is due, when it is told to drain."""
        broker_failures = database_failures = 0
        while True:
            self._woken.clear()
            try:
                is_done = await self._round()
                database_failures = 0
                if is_done and not self.is_draining:
                    await self._reach_broker()
                broker_failures = 0
            except BrokerError as exc:
                broker_failures += 1
                self._availability.lost(exc)
                await asyncio.sleep(self._availability.pause(broker_failures, random.random()))
            except ConnectionLost:
                database_failures += 1
                await asyncio.sleep(full_jitter(*_RECONNECT, database_failures, random.random()))
            else:
                if is_done and self.is_draining:
                    return
                if is_done:
                    await self._wait()

    async def meet(self) -> None:
        await self._availability.meet(self._broker)

    async def _reach_broker(self) -> None:
        """With nothing to send, a broker that was away is asked whether it is back; raises BrokerError if not."""
        if not self._availability.is_up:
            await self._broker.check()
            self._availability.found()

    async def _round(self) -> bool:
        """One batch from the table to the broker and back; whether there was no more than that."""
        # Also without a lane, lest a database that is back is taken for gone.
        await self._session.open()
        await self._save()
        lanes, limit = self._mine(), self._rows
        if not lanes:
            return True
        began = time.monotonic()
        found = await self._session.fetch(statements.read_lanes(list(lanes), self._settings.lanes, limit))
        # Looking past what is held up takes its time: as long as that, the database has its rest.
        self._rested = 2 * time.monotonic() - began
        # Nothing is awaited from here to the send: whoever had the lanes meanwhile may have sent these, and later ones.
        if not lanes.items() <= self._mine().items():
            return False
        chosen = self._judge.choose([as_entry(one, deadline=0.0) for one in found])
        if chosen:
            await self._send(chosen)
            await self._save()
        if len(found) == limit:
            self._rows = next_limit(limit, sum(len(one.payload) for one in found), self._settings.claim_rows)
        await self._keeper.give_up_excess()
        return len(found) < limit and len(chosen) == len(found)

    def _mine(self) -> dict[int, int]:
        """The lanes that are ours until a send that begins now has ended."""
        return self._keeper.mine_until(time.monotonic() + self._settings.confirm_timeout.total_seconds())

    async def _send(self, entries: list[Entry]) -> None:
        spans = SendSpans(entries)
        try:
            offered = await self._offer(entries)
        except BaseException as exc:
            spans.fail(str(exc))
            raise
        outcome = self._judge.judge(entries, offered)
        self._settle(outcome, offered)
        self._failures.note(entries, offered.left, outcome.unpublished)
        spans.end({one.index: one.reason for one in offered.refused} | {one.index: one.reason for one in offered.left})
        if is_answered(offered, len(entries)):
            self._availability.found()
        elif not any(one.was_sent for one in offered.left):
            raise BrokerUnavailable(offered.left[0].reason)

    async def _offer(self, entries: list[Entry]) -> Offered:
        self._counts.in_flight = len(entries)
        try:
            return await self._broker.offer(entries)
        finally:
            self._counts.in_flight = 0

    def _settle(self, outcome: Outcome, offered: Offered) -> None:
        self._sent += outcome.published
        self._unpublished += outcome.unpublished
        waits = [one.wait_seconds for one in outcome.unpublished if one.wait_seconds is not None]
        if waits:
            due, now = time.monotonic() + min(waits), time.monotonic()
            self._due = due if self._due <= now else min(self._due, due)
        counts = self._counts
        counts.published += len(outcome.published)
        counts.duplicates += offered.duplicates
        counts.nacks += outcome.nacks
        counts.returns += outcome.returns
        counts.dead += sum(one.status == "dead" for one in outcome.unpublished)
        counts.postponed += len(waits)

    async def _save(self) -> None:
        """Write down what was sent, and what was not taken: to be tried later, or dead and in nobody's way."""
        if self._sent:
            failpoints.hit("relay.acknowledged")
            saved = await self._session.execute(
                statements.save_published(
                    [one.id for one in self._sent],
                    [one.created_us for one in self._sent],
                    [one.tries for one in self._sent],
                )
            )
            self._counts.saves += 1
            self._counts.suspected_duplicates += len(self._sent) - saved
            self._sent = []
        if self._unpublished:
            outcomes = self._unpublished
            await self._session.execute(
                statements.save_unpublished(
                    None,
                    [one.entry.id for one in outcomes],
                    [one.entry.created_us for one in outcomes],
                    [one.status for one in outcomes],
                    [one.entry.tries for one in outcomes],
                    [one.wait_seconds for one in outcomes],
                    [None if one.error is None else storable(one.error) for one in outcomes],
                )
            )
            self._counts.saves += 1
            self._unpublished = []

    async def _wait(self) -> None:
        # Many transactions that wake it at once have one round in common.
        await asyncio.sleep(max(self._settings.send_every.total_seconds(), self._rested - time.monotonic()))
        now, seconds = time.monotonic(), self._settings.revive_every.total_seconds()
        if self._due > now:
            seconds = min(seconds, self._due - now)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()


class RunningOrdered:
    """The relay at work where it keeps the order of keys; used as `Running` is."""

    def __init__(self, url: str, brokers: Sequence[Broker], instance: str, settings: RelaySettings, counts: Counts) -> None:
        self.is_taking = True
        self.availability = Availability(counts)
        self._failures = Failures(asyncio.get_running_loop().call_later)
        self._woken = Signal()
        self.database = Database(counts)
        self._sessions = [Session(url, self.database) for _ in range(3)]
        self._thread = BrokerThread(brokers[0], "publisher")
        self._keeper = LaneKeeper(self._sessions[0], instance, settings, self._woken)
        self._publisher = OrderedPublisher(
            self._sessions[1],
            self._thread,
            self._keeper,
            self._woken,
            self.availability,
            self._failures,
            settings,
            counts,
        )
        self._age = Age(self._sessions[2], counts)
        self._counts = counts
        self.supervisor = Supervisor(settings.restarts, settings.restarts_within, counts)

    @property
    def fills(self) -> dict[str, int]:
        return {"intake": 0, "retry": 0, "save": self._publisher.unsaved}

    def has_room(self, events: int) -> bool:
        """Never: rows are for the owner of their lane."""
        return False

    async def meet_broker(self) -> None:
        """Find out whether the broker is there; raises if it does not let us in."""
        await self._publisher.meet()

    def start(self) -> None:
        self.supervisor.start("lanes", self._keeper.run)
        self.supervisor.start("publisher", self._publisher.run)
        self.supervisor.start("age", self._age.run)

    def wake(self) -> None:
        self._woken.set()

    def take(self, events: Sequence[EncodedEvent], created_us: Sequence[int], deadline: float) -> None:
        self.wake()

    async def stop(self, seconds: float) -> Leftover:
        """Send what is due in our lanes, for so long, and leave them to others."""
        deadline = time.monotonic() + seconds
        self.is_taking = False
        self._publisher.is_draining = True
        self._woken.set()
        await self.supervisor.finished("publisher", seconds - min(_LEAVE_SECONDS, seconds / 2))
        in_flight = self._counts.in_flight
        await self.supervisor.cancel("publisher", "lanes", "age")
        await self._leave(deadline - time.monotonic())
        await self.close()
        return Leftover(0, in_flight, self._publisher.unsaved)

    async def close(self) -> None:
        self._failures.close()
        for session in self._sessions:
            await session.close()
        self._thread.close()
        await self.supervisor.stop()

    async def _leave(self, seconds: float) -> None:
        """Not while something may still be sent: then the lanes are others' when their lease ends."""
        if self._thread.is_busy:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._keeper.leave()
        except (HeadwaterError, psycopg.Error, TimeoutError) as exc:
            _log.warning("the lanes of the outbox could not be given up, and are free when their lease ends: %s", exc)
