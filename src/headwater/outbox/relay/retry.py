"""Events that wait for another attempt: what a broker did not take, and what was found in the table. Bounded.

What was under way when a connection broke is suspected to have broken it: it goes in smaller company each time, and at last
alone, so that a message that no connection survives does not take others with it.
"""

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final

from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.portion import take_portion

# How many go together after so many breaks; None for as many as there are.
_COMPANY: Final[tuple[int | None, ...]] = (None, 256, 16, 1)
# Beyond that the first are forgotten, and found out again.
_SUSPECTS: Final = 10_000


class Suspects:
    """How often an event was under way when something broke. Pure."""

    def __init__(self, most: int = _SUSPECTS) -> None:
        self._most = most
        self._breaks: OrderedDict[str, int] = OrderedDict()

    def level(self, entry: Entry) -> int:
        return self._breaks.get(entry.id, 0) if self._breaks else 0

    def blame(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._breaks[entry.id] = min(self._breaks.pop(entry.id, 0) + 1, len(_COMPANY) - 1)
        while len(self._breaks) > self._most:
            self._breaks.popitem(last=False)

    def clear(self, entries: Iterable[Entry]) -> None:
        if self._breaks:
            for entry in entries:
                self._breaks.pop(entry.id, None)


def company(level: int) -> int | None:
    """How many of a level go together; None for as many as there are. Pure."""
    return _COMPANY[level]


class RetryQueue:
    """Written to and read in one event loop."""

    def __init__(self, most_events: int, most_bytes: int, suspects: Suspects) -> None:
        self._most_events, self._most_bytes, self._suspects = most_events, most_bytes, suspects
        # Of the payloads of all that waits.
        self._bytes = 0
        self._ready: tuple[deque[Entry], ...] = tuple(deque() for _ in _COMPANY)
        self._later: list[tuple[float, int, Entry]] = []
        self._numbers = count()
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._ready)) + len(self._later)

    @property
    def room(self) -> int:
        """For how many more; the last of them may pass the limit of bytes."""
        return max(self._most_events - len(self), 0) if self._bytes < self._most_bytes else 0

    async def wait_for_room(self, rows: int) -> None:
        """Wait until so many fit in, by their number and by the bytes of what is there, or until it is empty."""
        while self.room < rows and len(self):
            self._taken.clear()
            await self._taken.wait()

    def put(self, entries: Iterable[Entry]) -> None:
        """To be sent when there is time."""
        for entry in entries:
            self._bytes += entry.size
            self._make_ready(entry)
        self._changed.set()

    put_back = put

    def put_later(self, entries: Iterable[tuple[float, Entry]]) -> list[Entry]:
        """To be sent at a time of the loop's clock; returns what there is no room for."""
        rest = []
        for due, entry in entries:
            if self.room:
                self._bytes += entry.size
                heapq.heappush(self._later, (due, next(self._numbers), entry))
            else:
                rest.append(entry)
        self._changed.set()
        return rest

    async def take(self, most: int) -> list[Entry]:
        """What may go together and is due, up to a number; waits for something to be."""
        while True:
            self._changed.clear()
            self._promote(self._loop.time())
            if taken := self._company(most):
                self._note_taken(taken)
                return taken
            await self._wait()

    def take_expired(self, now: float) -> list[Entry]:
        """What is no longer ours to send."""
        expired: list[Entry] = []
        for ready in self._ready:
            expired += [entry for entry in ready if entry.deadline <= now]
            kept = [entry for entry in ready if entry.deadline > now]
            ready.clear()
            ready.extend(kept)
        self._note_taken(expired)
        return expired

    def take_all(self) -> list[Entry]:
        taken = [entry for ready in self._ready for entry in ready] + [entry for _, _, entry in self._later]
        for ready in self._ready:
            ready.clear()
        self._later.clear()
        self._note_taken(taken)
        return taken

    def _make_ready(self, entry: Entry) -> None:
        self._ready[self._suspects.level(entry)].append(entry)

    def _note_taken(self, entries: Iterable[Entry]) -> None:
        self._bytes -= sum(entry.size for entry in entries)
        self._taken.set()

    def _promote(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            self._make_ready(heapq.heappop(self._later)[2])

    def _company(self, most: int) -> list[Entry]:
        """Of each level in turn, so that suspects do not wait for ever, nor hold up the others."""
        for _ in _COMPANY:
            level, self._turn = self._turn, (self._turn + 1) % len(_COMPANY)
            ready, limit = self._ready[level], _COMPANY[level]
            if ready:
                return take_portion(ready, min(most, limit or most))
        return []

    async def _wait(self) -> None:
        seconds = self._later[0][0] - self._loop.time() if self._later else None
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return


def sendable(entries: Sequence[Entry], now: float, confirm_seconds: float) -> tuple[list[Entry], list[Entry]]:
    """Those whose lease lasts until a confirm would have to be there, and the others. Pure."""
    latest = now + confirm_seconds
    if all(entry.deadline >= latest for entry in entries):
        return list(entries), []
    return [one for one in entries if one.deadline >= latest], [one for one in entries if one.deadline < latest]
