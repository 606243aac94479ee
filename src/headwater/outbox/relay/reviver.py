"""Finding in the table what nobody holds: written by others, let go, or left behind by an instance that died."""

import asyncio
import random
import time
from contextlib import suppress
from datetime import timedelta
from typing import Final
from uuid import UUID

from headwater import failpoints
from headwater.errors import ConnectionLost
from headwater.outbox import statements
from headwater.outbox.relay.availability import Availability
from headwater.outbox.relay.backoff import full_jitter
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.ledger import Ledger
from headwater.outbox.relay.retry import RetryQueue
from headwater.outbox.relay.session import Session
from headwater.outbox.relay.settings import LEASE_MARGIN, RelaySettings
from headwater.outbox.relay.signal import Signal
from headwater.outbox.statements import ClaimedMessage

_RECONNECT: Final = (timedelta(milliseconds=200), timedelta(seconds=5))
_NIL: Final = str(UUID(int=0))
# A search takes a fifth of the time at the most: it passes over all that is postponed, which may be a great deal.
_REST: Final = 4
# Before it is known how large they are: 100 MiB at the most, with payloads of the usual limit.
FIRST_ROWS: Final = 100
# Of payloads in one claim; there are some claims in memory at a time.
_CLAIM_BYTES: Final = 16 << 20


class Reviver:
    """Claims what is due, a batch after another while there is more and while there is room."""

    def __init__(  # noqa: PLR0913 - the parts that it joins
        self,
        session: Session,
        instance: str,
        settings: RelaySettings,
        retries: RetryQueue,
        ledger: Ledger,
        availability: Availability,
        counts: Counts,
    ) -> None:
        self._session, self._instance, self._settings = session, instance, settings
        self._retries, self._ledger, self._availability, self._counts = retries, ledger, availability, counts
        self._woken = Signal()
        # How many to claim at a time, by how large they turn out to be.
        self._rows = min(FIRST_ROWS, settings.claim_rows)
        self._claiming: asyncio.Task[list[ClaimedMessage]] | None = None
        # How long the last claim took.
        self._claim_seconds = 0.0

    def wake(self) -> None:
        """Look at once; for any thread."""
        self._woken.set()

    async def run(self) -> None:
        failures = 0
        while True:
            try:
                # Also while the broker is away, lest a database that is back is taken for gone.
                await self._session.open()
                # Only one who can send has a use for more.
                await self._availability.up()
                self._woken.clear()
                await self._sweep()
                failures = 0
            except ConnectionLost:
                failures += 1
                await asyncio.sleep(full_jitter(*_RECONNECT, failures, random.random()))
                continue
            # Many transactions that wake it at once have one search in common.
            await asyncio.sleep(least_pause(self._claim_seconds, self._settings))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.revive_every.total_seconds()):
                    await self._woken.wait()

    async def finish(self, seconds: float) -> None:
        """After it was cancelled: wait for a claim that is under way, whose rows would else be held by nobody."""
        if self._claiming is not None:
            await asyncio.wait([self._claiming], timeout=max(seconds, 0))
            self._claiming.cancel()
            await asyncio.gather(self._claiming, return_exceptions=True)

    async def _sweep(self) -> None:
        """Once through all that is due."""
        after = (0, _NIL)
        while True:
            await self._retries.wait_for_room(self._rows)
            if not self._availability.is_up:
                break
            limit = min(self._rows, max(self._retries.room, 1))
            self._claiming = asyncio.create_task(self._claim(after, limit))
            claimed = await asyncio.shield(self._claiming)
            if len(claimed) < limit:
                break
            after = max((one.created_us, one.id) for one in claimed)
            self._rows = next_limit(limit, sum(len(one.payload) for one in claimed), self._settings.claim_rows)
        self._counts.sweeps += 1

    async def _claim(self, after: tuple[int, str], limit: int) -> list[ClaimedMessage]:
        # The server's clock is read after ours, so that its lease ends after ours.
        lease = self._settings.lease
        begun = time.monotonic()
        deadline = begun + (lease - LEASE_MARGIN).total_seconds()
        claimed = await self._session.fetch(statements.claim_due(self._instance, lease, after, limit))
        self._claim_seconds = time.monotonic() - begun
        if claimed:
            failpoints.hit("relay.claimed")
        entries = [as_entry(one, deadline) for one in sorted(claimed, key=lambda one: (one.created_us, one.id))]
        new = [entry for entry in entries if not self._ledger.renew(entry)]
        for entry in new:
            self._ledger.add(entry)
        self._counts.revived += len(new)
        self._retries.put(new)
        return claimed


def least_pause(seconds: float, settings: RelaySettings) -> float:
    """How long to wait after a search whose last claim, which found the rest, has taken so long. Pure."""
    return max(settings.send_every.total_seconds(), min(_REST * seconds, settings.lease.total_seconds()))


def next_limit(limit: int, size: int, most: int) -> int:
    """How many rows to claim after a full claim of `limit` rows with payloads of that size: up to twice as many. Pure."""
    return max(1, min(most, 2 * limit, limit * _CLAIM_BYTES // max(size, 1)))


def as_entry(message: ClaimedMessage, deadline: float) -> Entry:
    return Entry(
        message.id,
        message.created_us,
        message.topic,
        message.type,
        message.key,
        message.payload,
        message.headers,
        message.attempts,
        deadline,
    )
