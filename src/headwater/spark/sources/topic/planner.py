"""What comes next of a topic, and how it is split into tasks. It lives in Spark's planner process."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql.datasource import InputPartition

from headwater import failpoints
from headwater.errors import PositionError, PositionExpired
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.statements import fetch_sync
from headwater.spark.rules import MIB, ExpiredRule, TopicStart
from headwater.spark.shape import Shape
from headwater.spark.sources.content import Content
from headwater.spark.sources.topic import statements
from headwater.spark.sources.topic.cursors import Cursors
from headwater.spark.sources.topic.offset import TopicOffset
from headwater.spark.sources.topic.options import TopicOptions
from headwater.topics import Topic, find_sync, number_sync, require_topics
from headwater.topics.statements import Bounds, has_staged, read_bounds

# Spark asks again at once when there was nothing; a pause in here saves it the asking, and is short enough for a stop.
_IDLE_SECONDS = 0.1
# How long whoever gives out offsets at the moment is waited for: he is done within milliseconds.
_NUMBERING_SECONDS = 0.01
# What a task reads: enough that its start, some 20 ms, does not matter, and little enough to keep all cores busy.
_PIECE_BYTES: Final = 32 * MIB
# How many frames are looked at to find the end of a batch, of each partition: some 20 ms.
_FRAMES: Final = 20_000


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The messages of a partition from one offset to before another, and the query that gives their frames."""

    partition: int
    first: int
    until: int
    query: str


class Planner:
    """What one query knows in Spark's planner process."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options
        self._connection: Connection | None = None
        self._until: Mapping[int, int] | None = None
        try:
            with translated(options.url):
                require_topics(self._connected)
                self._topic: Topic = find_sync(self._connected, options.topic)
        except BaseException:
            # Nobody has the planner yet who could close it.
            self.close()
            raise
        self._cursors = None if options.group is None else Cursors(self._topic, options.group)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def initial(self) -> TopicOffset:
        """Where a query without a past of its own begins: at the cursors of its group, or where the options say."""
        with translated(self._options.url):
            known = {} if self._cursors is None else self._cursors.find(self._connected)
            starts = self._ends() if self._options.start is TopicStart.LATEST and not known else self._firsts()
        return self._offset({**starts, **known})

    def end_here(self) -> None:
        """Deliver what has committed by now, and nothing that comes later."""
        with translated(self._options.url):
            self._until = self._ends()

    def whole(self) -> tuple[TopicOffset, TopicOffset]:
        """All that there is by now, from where the options say."""
        start = self.initial()
        with translated(self._options.url):
            return start, self._offset(self._ends())

    def next(self, committed: TopicOffset) -> TopicOffset | None:
        """The end of the next range, if there is anything to deliver; what was committed is the group's from then on."""
        self._require_same(committed)
        with translated(self._options.url):
            connection = self._connected
            if self._cursors is not None:
                self._cursors.move(connection, committed.next)
                if self._cursors.is_paused(connection):
                    time.sleep(_IDLE_SECONDS)
                    return None
            number_sync(connection, self._topic)
            starts = self._behind(committed)
            if starts:
                return self._moved(committed, starts)
        if self._until is None:
            time.sleep(_IDLE_SECONDS)
        return None

    def partitions(self, start: TopicOffset, end: TopicOffset) -> list[InputPartition]:
        """What lies between two offsets: a task for each partition of a topic, or where order does not matter, more."""
        failpoints.hit("source.partitions")
        self._require_same(end)
        found: list[InputPartition] = []
        with translated(self._options.url):
            if self._cursors is not None:
                self._cursors.hold(self._connected, start.next)
            for bounds in self._bounds():
                partition = bounds.partition
                first, until = self._first(start, bounds), end.next.get(partition, 0)
                for cut in self._cuts(partition, first, until) if first < until else ():
                    query = statements.read_range(self._topic.id, partition, first, cut)
                    found.append(RangePartition(partition, first, cut, query))
                    first = cut
        return found

    def _cuts(self, partition: int, first: int, until: int) -> list[int]:
        if self._options.shape is Shape.PACKED:
            return [until]
        cuts = fetch_sync(self._connected, statements.find_cuts(self._topic.id, partition, first, until, _PIECE_BYTES))
        return [*(cut for cut in cuts if first < cut < until), until]

    def _behind(self, committed: TopicOffset) -> dict[int, int]:
        """The partitions that have more, with where to go on."""
        starts = {}
        for bounds in self._bounds():
            first = self._first(committed, bounds)
            until = bounds.next_offset if self._until is None else self._until.get(bounds.partition, 0)
            if first < until:
                starts[bounds.partition] = first
        return starts

    def _first(self, offset: TopicOffset, bounds: Bounds) -> int:
        """The next offset of a partition; raises PositionExpired if what stood there was dropped."""
        wanted = offset.next.get(bounds.partition, 0)
        if wanted >= bounds.first_offset or bounds.partition not in offset.next:
            return max(wanted, bounds.first_offset)
        if self._options.on_expired is ExpiredRule.EARLIEST:
            return bounds.first_offset
        raise expired(self._options, bounds.partition, wanted, bounds.first_offset)

    def _moved(self, committed: TopicOffset, starts: Mapping[int, int]) -> TopicOffset:
        """The offset at the end of a range; each partition that has more gets the same part of the limits."""
        limit = -(-self._options.max_bytes // len(starts))
        ends = fetch_sync(self._connected, statements.find_ends(self._topic.id, starts, bytes=limit, frames=_FRAMES))
        following = {one.partition: self._limited(one.partition, starts, one.next_offset) for one in ends}
        messages = sum(until - starts[partition] for partition, until in following.items())
        newest = max((one.created_at for one in ends), default=None)
        moved = replace(committed, next={**committed.next, **following})
        return replace(moved, content=Content(messages, newest, {self._topic.name: messages}))

    def _limited(self, partition: int, starts: Mapping[int, int], until: int) -> int:
        if self._until is not None:
            until = min(until, self._until.get(partition, 0))
        if self._options.max_rows is not None:
            until = min(until, starts[partition] + -(-self._options.max_rows // len(starts)))
        return until

    def _firsts(self) -> dict[int, int]:
        return {one.partition: one.first_offset for one in self._bounds()}

    def _ends(self) -> dict[int, int]:
        """The next offset of each partition, when all that has committed by now has its own."""
        while not number_sync(self._connected, self._topic) and fetch_sync(self._connected, has_staged(self._topic.id))[0]:
            time.sleep(_NUMBERING_SECONDS)
        return {one.partition: one.next_offset for one in self._bounds()}

    def _bounds(self) -> list[Bounds]:
        return fetch_sync(self._connected, read_bounds(self._topic.id))

    def _offset(self, following: Mapping[int, int]) -> TopicOffset:
        return TopicOffset(self._topic.name, self._topic.created_at.isoformat(), following)

    def _require_same(self, offset: TopicOffset) -> None:
        if (offset.topic, offset.identity) != (self._topic.name, self._topic.created_at.isoformat()):
            raise PositionError(
                f"the checkpoint directory is of another topic than {self._topic.name!r}, or of one that was dropped since; "
                "name another checkpoint directory, or remove this one"
            )

    @property
    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect_sync(self._options.url)
        return self._connection


def expired(options: TopicOptions, partition: int, wanted: int, oldest: int) -> PositionExpired:
    return PositionExpired(
        f"partition {partition} of topic {options.topic!r}",
        wanted,
        oldest,
        "set `onExpired` to earliest to go on there, or `on_expired` in a pipeline file",
    )


def plan_all(options: TopicOptions) -> list[InputPartition]:
    """The tasks that read all that there is."""
    with closing(Planner(options)) as planner:
        return planner.partitions(*planner.whole())
