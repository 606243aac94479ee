"""Sending what waits in a queue over one connection to the broker: as much at once as has come meanwhile."""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Protocol

from headwater.brokers.base import Offered
from headwater.errors import BrokerError
from headwater.outbox.relay.availability import Availability
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.failures import Failures
from headwater.outbox.relay.ledger import Ledger
from headwater.outbox.relay.outcome import Judge, Outcome, Unpublished
from headwater.outbox.relay.pace import Pace
from headwater.outbox.relay.retry import RetryQueue, Suspects, sendable
from headwater.outbox.relay.saver import Saver
from headwater.outbox.relay.settings import RelaySettings
from headwater.outbox.relay.thread import BrokerThread
from headwater.outbox.relay.tracing import SendSpans

_log = logging.getLogger(__name__)


class Queue(Protocol):
    """Where entries wait: those of new transactions, or those that are tried again."""

    def __len__(self) -> int: ...

    async def take(self, most: int) -> list[Entry]: ...

    def put_back(self, entries: Sequence[Entry]) -> None: ...

    def take_expired(self, now: float) -> list[Entry]: ...


class Desk:
    """Where the outcome of an attempt is dealt with, for all who send."""

    def __init__(  # noqa: PLR0913 - the parts that it joins
        self,
        judge: Judge,
        saver: Saver,
        retries: RetryQueue,
        suspects: Suspects,
        ledger: Ledger,
        failures: Failures,
        counts: Counts,
    ) -> None:
        self._judge, self._saver, self._retries, self._suspects = judge, saver, retries, suspects
        self._ledger, self._failures, self._counts = ledger, failures, counts

    async def wait_for_room(self) -> None:
        await self._saver.wait_for_room()

    def let_go(self, entries: Sequence[Entry]) -> None:
        """Give back what is not sent in time."""
        if entries:
            self._counts.let_go += len(entries)
            self._saver.release(entries)

    def forget(self, entries: Sequence[Entry]) -> None:
        """Nobody has them any more, so that whoever finds them in the table may, once their lease has ended."""
        self._ledger.remove(entries)

    def settle(self, entries: Sequence[Entry], offered: Offered) -> None:
        """See to what becomes of the entries of an offer."""
        try:
            self._settle(entries, offered)
        except BaseException:
            self.forget(entries)
            raise

    def _settle(self, entries: Sequence[Entry], offered: Offered) -> None:
        now = time.monotonic()
        outcome = self._judge.judge(entries, offered, now)
        self._suspects.clear(outcome.published)
        self._suspects.blame(outcome.suspects)
        rest = self._retries.put_later(outcome.again) if outcome.again else []
        unpublished = outcome.unpublished + [Unpublished(entry, "pending", 0.0, None) for entry in rest]
        self._saver.published(outcome.published)
        self._saver.unpublished(unpublished)
        self._failures.note(entries, offered.left, unpublished)
        self._count(outcome, offered, unpublished, now)

    def _count(self, outcome: Outcome, offered: Offered, unpublished: Sequence[Unpublished], now: float) -> None:
        counts = self._counts
        counts.duplicates += offered.duplicates
        counts.nacks += outcome.nacks
        counts.returns += outcome.returns
        counts.published += len(outcome.published)
        dead = sum(one.status == "dead" for one in unpublished)
        counts.dead += dead
        counts.postponed += len(unpublished) - dead
        for entry in outcome.published:
            if entry.committed is not None:
                counts.confirmed(now - entry.committed)


class Publisher:
    """Sends what a queue has, one window after another; while the broker is away, it knocks."""

    def __init__(  # noqa: PLR0913 - the parts that it joins
        self,
        queue: Queue,
        broker: BrokerThread,
        desk: Desk,
        availability: Availability,
        settings: RelaySettings,
        counts: Counts,
    ) -> None:
        self._queue, self._broker, self._desk = queue, broker, desk
        self._availability, self._settings, self._counts = availability, settings, counts
        self._confirm_seconds = settings.confirm_timeout.total_seconds()
        self._pace = Pace(settings)
        # To reach the broker, in a row.
        self._failures = 0

    async def meet(self) -> None:
        await self._availability.meet(self._broker, self)

    async def run(self) -> None:
        while True:
            await self._desk.wait_for_room()
            if not self._availability.is_up and not await self._knock():
                continue
            entries = await self._queue.take(self._settings.window)
            next_at = self._pace.next_at(len(entries), time.monotonic())
            entries, late = sendable(entries, time.monotonic(), self._confirm_seconds)
            self._desk.let_go(late)
            if entries:
                await self._send(entries)
            await asyncio.sleep(max(next_at - time.monotonic(), 0))

    async def _send(self, entries: list[Entry]) -> None:
        spans = SendSpans(entries)
        try:
            offered = await self._offer(entries)
        except BrokerError as exc:
            # Nothing was sent. It waits here for the broker until its time is over.
            self._queue.put_back(entries)
            spans.fail(str(exc))
            self._lost(exc)
        except Exception:
            self._desk.forget(entries)
            raise
        else:
            self._desk.settle(entries, offered)
            spans.end({one.index: one.reason for one in offered.refused} | {one.index: one.reason for one in offered.left})
            # A broker that took what was sent and said nothing is neither there nor away.
            if is_answered(offered, len(entries)):
                self._found()

    def _lost(self, error: BrokerError) -> None:
        self._failures += 1
        self._availability.lost(error, self)

    def _found(self) -> None:
        self._failures = 0
        self._availability.found(self)

    async def _offer(self, entries: list[Entry]) -> Offered:
        self._counts.in_flight += len(entries)
        try:
            return await self._broker.offer(entries)
        finally:
            self._counts.in_flight -= len(entries)

    async def _knock(self) -> bool:
        """Wait a little, and find out whether the broker is back; with something to send, that is told by sending it."""
        if self._failures:
            await asyncio.sleep(self._availability.pause(self._failures, random.random()))
        self._desk.let_go(self._queue.take_expired(time.monotonic() + self._confirm_seconds))
        if len(self._queue):
            return True
        is_there = await self._availability.ask(self._broker, self)
        self._failures = 0 if is_there else self._failures + 1
        return is_there


def is_answered(offered: Offered, count: int) -> bool:
    """Whether the broker has had its word on any of so many messages. Pure."""
    return len(offered.left) < count or any(one.was_answered for one in offered.left)
