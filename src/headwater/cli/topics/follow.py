"""Reading a topic without a group: from a place on, and nothing is moved."""

from collections.abc import Iterator
from threading import Event
from typing import Final

from headwater.cli.topics.printer import Printer
from headwater.errors import PositionExpired
from headwater.postgres.connect import Connection
from headwater.postgres.statements import fetch_sync
from headwater.topics import Message, Topic, number_sync
from headwater.topics.frame import Framed, read_messages
from headwater.topics.group import find_place, resolved
from headwater.topics.statements import LogRow, read_bounds, read_frames
from headwater.topics.subscribe_settings import Start

# Of each partition at a time: some MiB.
_FRAMES: Final = 16
# How soon somebody who watches sees a message; a look that finds nothing writes nothing.
_LOOK_SECONDS: Final = 0.1


class Follower:
    """The messages of a topic, or of one partition of it, from a place on."""

    def __init__(self, connection: Connection, topic: Topic, place: Start, partition: int | None) -> None:
        self._connection, self._topic, self._has_all = connection, topic, partition is None
        number_sync(connection, topic)
        places = fetch_sync(connection, find_place(topic, place, partition))
        self._next = resolved(topic, place, places, partition)
        self._ends = {one.partition: one.next_offset for one in places}

    def run(self, printer: Printer, stopping: Event, *, follows: bool) -> None:
        """Print until told to stop, enough is printed, or, unless it follows, what was there at the beginning is."""
        while not stopping.is_set() and printer.left != 0:
            number_sync(self._connection, self._topic)
            places = list(self._next), list(self._next.values())
            read = fetch_sync(self._connection, read_frames(self._topic.id, *places, _FRAMES))
            messages = [one for row in read for one in self._messages(row)]
            printer.print([one for one in messages if follows or _offset(one) < self._ends[_partition(one)]])
            if not follows and (not read or all(self._next[partition] >= end for partition, end in self._ends.items())):
                return
            if not read:
                stopping.wait(_LOOK_SECONDS)
                self._add_partitions()

    def _add_partitions(self) -> None:
        """Those that the topic got meanwhile are read from their beginning."""
        if self._has_all:
            for one in fetch_sync(self._connection, read_bounds(self._topic.id)):
                self._next.setdefault(one.partition, one.first_offset)

    def _messages(self, row: LogRow) -> Iterator[Message]:
        """Those of a frame that were not printed yet; raises PositionExpired if some before them are gone."""
        framed = Framed(row.count, row.codec, row.frame)
        wanted = self._next[row.partition]
        if (first := row.last_offset - row.count + 1) > wanted:
            raise PositionExpired(f"partition {row.partition} of topic {self._topic.name!r}", wanted, first)
        self._next[row.partition] = row.last_offset + 1
        for message in read_messages(framed, row.partition, row.last_offset, row.created_at):
            if _offset(message) >= wanted:
                yield message


def _offset(message: Message) -> int:
    assert message.offset is not None
    return message.offset


def _partition(message: Message) -> int:
    assert message.partition is not None
    return message.partition
