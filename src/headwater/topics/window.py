"""Which messages of a partition go out next, and where they are in what was read of the log. Pure."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.topics.frame import Framed, read_messages
from headwater.topics.message import Message
from headwater.topics.statements import LogRow


def window(next_offset: int, tip: int, most: int) -> range:
    """The offsets that go out: from the next on, up to the newest there is, and no more than so many; none if none is there.

    The tip may be older than the position, by one who has read it before.
    """
    return range(next_offset, next_offset + min(most, max(0, tip - next_offset + 1)))


@dataclass(frozen=True, slots=True)
class Part:
    """Messages of one partition that go out together, by who has its epoch; `rows` hold them, and maybe others.

    `attempts` is how often they are given out with this time, where that is counted.
    """

    partition: int
    epoch: int
    offsets: range
    rows: Sequence[LogRow]
    attempts: int = 1

    @property
    def first_offset(self) -> int:
        return self.offsets.start

    @property
    def next_offset(self) -> int:
        return self.offsets.stop

    def messages(self) -> list[Message]:
        return [
            message
            for row in self.rows
            for message in read_messages(
                Framed(row.count, row.codec, row.frame), row.partition, row.last_offset, row.created_at, self.offsets
            )
        ]


class Buffer:
    """What was read of a partition and was not given out yet."""

    def __init__(self, next_offset: int) -> None:
        # The next to be given out, and the next to be read.
        self.given, self.read = next_offset, next_offset
        self._rows: deque[LogRow] = deque()

    def __len__(self) -> int:
        return self.read - self.given

    def add(self, row: LogRow) -> None:
        self._rows.append(row)
        self.read = row.last_offset + 1

    def take(self, most: int, most_bytes: int) -> tuple[range, list[LogRow]]:
        """The next offsets and the rows that hold them: one row, and others while there are fewer bytes than that."""
        offsets, size = window(self.given, self.read - 1, most), 0
        rows: list[LogRow] = []
        end = offsets.start
        while end < offsets.stop and (size < most_bytes or not rows):
            row = self._rows[0]
            rows.append(row)
            size += len(row.frame)
            end = min(offsets.stop, row.last_offset + 1)
            if end > row.last_offset:
                self._rows.popleft()
        self.given = end
        return range(offsets.start, end), rows
