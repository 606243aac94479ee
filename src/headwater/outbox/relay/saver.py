"""What became of events, written down in batches: by size or after a delay, and put back while the database is away."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from headwater import failpoints
from headwater.errors import ConnectionLost
from headwater.outbox import statements
from headwater.outbox.relay.backoff import full_jitter
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.ledger import Ledger
from headwater.outbox.relay.outcome import Unpublished
from headwater.outbox.relay.session import Session
from headwater.outbox.relay.settings import RelaySettings

# Of one statement, so that none takes long.
_MOST_ROWS: Final = 5_000
_MOST_CHARACTERS: Final = 2_000
_RECONNECT: Final = (timedelta(milliseconds=200), timedelta(seconds=5))


@dataclass(slots=True)
class _Batch:
    published: list[Entry] = field(default_factory=list)
    unpublished: list[Unpublished] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.published) + len(self.unpublished)


class Saver:
    """Takes outcomes from the tasks that send; written by one task."""

    def __init__(self, session: Session, instance: str, settings: RelaySettings, ledger: Ledger, counts: Counts) -> None:
        self._session, self._instance, self._settings = session, instance, settings
        self._ledger, self._counts = ledger, counts
        self._waiting = _Batch()
        self._arrived, self._filled, self._emptied = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._is_hasty = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def count_published(self) -> int:
        return len(self._waiting.published)

    def published(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            entry.empty()
        self._waiting.published += entries
        self._tell()

    def unpublished(self, outcomes: Sequence[Unpublished]) -> None:
        for outcome in outcomes:
            outcome.entry.empty()
        self._waiting.unpublished += outcomes
        self._tell()

    def release(self, entries: Sequence[Entry]) -> None:
        """Give events back to the table, for whoever claims them."""
        self.unpublished([Unpublished.released(entry) for entry in entries])

    async def wait_for_room(self) -> None:
        """Wait while so much is unwritten that no more should be sent."""
        while len(self._waiting) >= self._settings.save_events:
            self._emptied.clear()
            await self._emptied.wait()

    def hasten(self) -> None:
        """From now on, write at once what comes."""
        self._is_hasty = True
        self._tell()

    async def run(self) -> None:
        failures = 0
        while True:
            await self._gather()
            try:
                await self.flush()
                failures = 0
            except ConnectionLost:
                failures += 1
                await asyncio.sleep(full_jitter(*_RECONNECT, failures, random.random()))

    async def flush(self) -> None:
        """Write down what there is; what could not be written is put back."""
        while len(self._waiting):
            batch, self._waiting = self._waiting, _Batch()
            rest = _Batch(batch.published[_MOST_ROWS:], batch.unpublished[_MOST_ROWS:])
            del batch.published[_MOST_ROWS:], batch.unpublished[_MOST_ROWS:]
            self._put_back(rest)
            try:
                await self._save_published(batch)
                await self._save_unpublished(batch)
            except BaseException:
                self._put_back(batch)
                raise
            self._emptied.set()

    async def _save_published(self, batch: _Batch) -> None:
        if not batch.published:
            return
        failpoints.hit("relay.acknowledged")
        entries = sorted(batch.published, key=_by_key)
        saved = await self._session.execute(
            statements.save_published(
                [one.id for one in entries], [one.created_us for one in entries], [one.tries for one in entries]
            )
        )
        self._counts.saves += 1
        self._counts.suspected_duplicates += len(batch.published) - saved
        self._ledger.remove(batch.published)
        batch.published.clear()

    async def _save_unpublished(self, batch: _Batch) -> None:
        if not batch.unpublished:
            return
        outcomes = sorted(batch.unpublished, key=lambda one: _by_key(one.entry))
        await self._session.execute(
            statements.save_unpublished(
                self._instance,
                [one.entry.id for one in outcomes],
                [one.entry.created_us for one in outcomes],
                [one.status for one in outcomes],
                [one.entry.tries for one in outcomes],
                [one.wait_seconds for one in outcomes],
                [None if one.error is None else storable(one.error) for one in outcomes],
            )
        )
        self._counts.saves += 1
        self._ledger.remove([one.entry for one in batch.unpublished])
        batch.unpublished.clear()

    def _put_back(self, batch: _Batch) -> None:
        self._waiting.published[:0] = batch.published
        self._waiting.unpublished[:0] = batch.unpublished
        if len(self._waiting):
            self._tell()

    async def _gather(self) -> None:
        """Wait until there is something, and then for more of it, for as long as the settings say."""
        while not len(self._waiting):
            self._arrived.clear()
            await self._arrived.wait()
        if self._is_hasty or len(self._waiting) >= self._settings.save_rows:
            return
        self._filled.clear()
        try:
            async with asyncio.timeout(self._settings.save_every.total_seconds()):
                await self._filled.wait()
        except TimeoutError:
            return

    def _tell(self) -> None:
        self._arrived.set()
        if self._is_hasty or len(self._waiting) >= self._settings.save_rows:
            self._filled.set()


def storable(reason: str) -> str:
    """The words of a broker as a column of text can hold them, and not too many of them."""
    return reason[:_MOST_CHARACTERS].replace("\0", "").encode(errors="replace").decode()


def _by_key(entry: Entry) -> tuple[int, str]:
    """All who update rows lock them in this order, so that no two wait for each other."""
    return entry.created_us, entry.id
