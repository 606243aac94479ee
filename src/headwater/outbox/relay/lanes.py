"""The lanes that an instance has, each with one owner at a time: renewed while it lives, shared with those who come."""

import asyncio
import time
from typing import Final

from headwater import failpoints
from headwater.errors import ConnectionLost
from headwater.outbox import statements
from headwater.outbox.relay.session import Session
from headwater.outbox.relay.settings import LEASE_MARGIN, RelaySettings
from headwater.outbox.relay.signal import Signal

# After a renewal that failed: there is time for some before the lease ends.
_SOON_SECONDS: Final = 1.0


class LaneKeeper:
    """Renews the lanes three times within a lease; that is all that is written while nothing happens."""

    def __init__(self, session: Session, instance: str, settings: RelaySettings, changed: Signal) -> None:
        self._session, self._instance, self._settings, self._changed = session, instance, settings, changed
        # With the epoch of each, which another owner raises.
        self._lanes: dict[int, int] = {}
        self._share = settings.lanes
        self._deadline = 0.0
        # Whoever gives lanes up meanwhile must not have them back by an older answer.
        self._lock = asyncio.Lock()

    def mine_until(self, at: float) -> dict[int, int]:
        """The lanes that are sure to be this instance's until a time of the monotonic clock, each with its epoch.

        What was read of a lane is still true if its epoch is the same: nobody else has had it since.
        """
        return dict(self._lanes) if self._deadline >= at else {}

    async def run(self) -> None:
        third = self._settings.lease.total_seconds() / 3
        while True:
            try:
                await self.keep()
                pause = third
            except ConnectionLost:
                pause = min(third, _SOON_SECONDS)
            await asyncio.sleep(pause)

    async def keep(self) -> None:
        """Renew what is ours, and take what nobody has, up to our share."""
        async with self._lock:
            failpoints.hit("relay.lease_renewal")
            # The server's clock is read after ours, so that its lease ends after ours.
            deadline = time.monotonic() + (self._settings.lease - LEASE_MARGIN).total_seconds()
            (kept,) = await self._session.fetch(statements.keep_lanes(self._instance, self._settings.lease))
            had, self._lanes = self._lanes, dict(zip(kept.lanes, kept.epochs, strict=True))
            self._share, self._deadline = kept.share, deadline
        if had != self._lanes or len(self._lanes) > self._share:
            self._changed.set()

    async def give_up_excess(self) -> None:
        """Leave to others what is beyond our share; only while nothing is under way."""
        if len(self._lanes) <= self._share:
            return
        async with self._lock:
            excess = list(self._lanes)[self._share :]
            self._lanes = {lane: epoch for lane, epoch in self._lanes.items() if lane not in excess}
            await self._session.execute(statements.give_up_lanes(self._instance, excess))

    async def leave(self) -> None:
        """Leave all to others."""
        self._lanes = {}
        await self._session.execute(statements.leave_lanes(self._instance))
