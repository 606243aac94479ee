"""What of the outbox is in this process's memory, from when it was handed over until its outcome is written down.

A row that is claimed although it is here, since its lease ran out meanwhile, must not be sent a second time.
"""

import asyncio
from collections.abc import Iterable

from headwater.outbox.relay.entry import Entry


class Ledger:
    """Entries by id. Adding is for any thread; the rest is for the thread of the event loop."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._emptied: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        self._entries[entry.id] = entry

    def renew(self, claimed: Entry) -> bool:
        """Whether a row that was just claimed is here already; then its entry has the time of the new lease."""
        known = self._entries.get(claimed.id)
        if known is None:
            return False
        known.deadline = max(known.deadline, claimed.deadline)
        return True

    def remove(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._entries.pop(entry.id, None)
        if not self._entries and self._emptied is not None:
            self._emptied.set()

    async def empty(self) -> None:
        """Wait until nothing is in memory."""
        self._emptied = asyncio.Event()
        if self._entries:
            await self._emptied.wait()
        self._emptied = None
