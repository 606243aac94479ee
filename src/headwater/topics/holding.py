"""A partition that a member reads: what it has of it, how far it has given it out, and how far that is committed."""

from dataclasses import dataclass, field

from headwater.topics.group_statements import Cursor
from headwater.topics.window import Buffer, Part


@dataclass(slots=True)
class Holding:
    """Of one epoch. `committed` is the cursor, as far as this member knows."""

    partition: int
    epoch: int
    committed: int
    attempts: int
    suspect_until: int
    # When others were to have it, by the monotonic clock; it is given up when all that was given out of it is committed.
    owed_since: float | None = None
    buffer: Buffer = field(init=False)

    def __post_init__(self) -> None:
        self.rewind()

    @classmethod
    def of(cls, cursor: Cursor) -> "Holding":
        return cls(cursor.partition, cursor.epoch, cursor.next_offset, cursor.attempts, cursor.suspect_until)

    @property
    def is_clean(self) -> bool:
        """Whether all that was given out is committed."""
        return self.buffer.given <= self.committed

    @property
    def is_suspect(self) -> bool:
        """Whether the next message goes out alone."""
        return self.buffer.given <= self.suspect_until

    def rewind(self) -> None:
        """Begin again at the cursor."""
        self.buffer = Buffer(self.committed)

    def commit(self, next_offset: int) -> None:
        self.committed = max(self.committed, next_offset)
        self.attempts = 0

    def take(self, most: int, most_bytes: int) -> Part:
        offsets, rows = self.buffer.take(most, most_bytes)
        return Part(self.partition, self.epoch, offsets, rows, self.attempts + 1)
