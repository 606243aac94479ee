"""The events of a transaction that are not written yet, by the blocks that are open. Pure."""

from collections.abc import Sequence

from headwater.outbox.event import EncodedEvent


class Pending:
    """An event belongs to the innermost block: when that is rolled back it is forgotten, else it goes to the one around."""

    def __init__(self) -> None:
        self._blocks: list[list[EncodedEvent]] = [[]]

    @property
    def depth(self) -> int:
        """How many blocks are open; none once the events were taken."""
        return len(self._blocks)

    def add(self, events: Sequence[EncodedEvent]) -> None:
        self._blocks[-1] += events

    def enter(self) -> None:
        self._blocks.append([])

    def leave(self, *, keeps: bool) -> None:
        inner = self._blocks.pop()
        if keeps:
            self._blocks[-1] += inner

    def take(self) -> list[EncodedEvent]:
        """All of them, at the end of the outermost block."""
        (events,) = self._blocks
        self.close()
        return events

    def close(self) -> None:
        self._blocks = []
