"""What a subscriber needs of either kind of reading: by partitions of its own, or by shared ranges."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from headwater.topics.batch import Giver
from headwater.topics.window import Part


class Found(Enum):
    """What a poll has found, and so when the next one is due."""

    NOTHING = "later"
    COMING = "as soon as another one is done with it"
    SOME = "soon"
    MORE = "at once"


class Reader(Giver, Protocol):
    async def open(self) -> None: ...

    async def poll(self) -> Found:
        """Read what is next into memory, maybe while the caller still works on a batch."""

    def concerns(self, partitions: Sequence[int]) -> bool:
        """Whether news of some partitions, or of any if none are named, may be for this reader."""

    async def take(self) -> Sequence[Part]:
        """What goes out now, in the order of partitions; nothing if nothing is there."""

    async def fail(self, parts: Sequence[Part], reason: str) -> None:
        """What was given out has failed: it comes again, or is a dead letter."""

    async def leave(self) -> None:
        """Give everything up for others; what was not committed stays so."""
