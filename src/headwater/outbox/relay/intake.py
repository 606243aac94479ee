"""Where events wait after the commit of their transaction: bounded, and for any thread to put in without waiting."""

from collections import deque
from collections.abc import Sequence
from threading import Lock

from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.portion import take_portion
from headwater.outbox.relay.signal import Signal


class Intake:
    """A queue with many writers in any thread, and one reader in an event loop."""

    def __init__(self, most_events: int, most_bytes: int) -> None:
        self._most_events, self._most_bytes = most_events, most_bytes
        self._waiting: deque[Entry] = deque()
        self._bytes = 0
        # Held for as long as it takes to count; nobody waits with it.
        self._lock = Lock()
        self._arrived = Signal()

    def __len__(self) -> int:
        return len(self._waiting)

    def has_room(self, events: int) -> bool:
        """Whether so many more fit in. One who asks and one who puts in at the same time may pass the limit together."""
        return len(self._waiting) + events <= self._most_events and self._bytes < self._most_bytes

    def put(self, entries: Sequence[Entry]) -> None:
        """Never waits, and always takes: who has no room asks before, when the rows are written."""
        with self._lock:
            self._waiting.extend(entries)
            self._bytes += sum(entry.size for entry in entries)
        self._arrived.set()

    def put_back(self, entries: Sequence[Entry]) -> None:
        """To the front, what could not be sent."""
        with self._lock:
            self._waiting.extendleft(reversed(entries))
            self._bytes += sum(entry.size for entry in entries)
        self._arrived.set()

    async def take(self, most: int) -> list[Entry]:
        """All that waits, up to a number, or up to what one message of a broker's protocol should have; waits for some."""
        while True:
            self._arrived.clear()
            if taken := self._drain(most):
                return taken
            await self._arrived.wait()

    def take_expired(self, now: float) -> list[Entry]:
        """What is at the front and no longer ours to send."""
        expired: list[Entry] = []
        with self._lock:
            while self._waiting and self._waiting[0].deadline <= now:
                expired.append(self._waiting.popleft())
            self._bytes -= sum(entry.size for entry in expired)
        return expired

    def take_all(self) -> list[Entry]:
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
            self._bytes = 0
        return taken

    def _drain(self, most: int) -> list[Entry]:
        with self._lock:
            taken = take_portion(self._waiting, most)
            self._bytes -= sum(entry.size for entry in taken)
        return taken
