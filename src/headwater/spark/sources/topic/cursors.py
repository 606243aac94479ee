"""The cursors of a group that Spark reads for: taken when a query begins, and moved to what it has committed."""

from collections.abc import Mapping

from headwater.errors import LeaseLost, TopicError
from headwater.postgres.connect import Connection
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.sources.topic import statements
from headwater.spark.sources.topic.statements import Cursor
from headwater.topics import Topic


class Cursors:
    """The cursors of a group. One query has them at a time: what comes later, a query or a member, shuts out the others."""

    def __init__(self, topic: Topic, group: str) -> None:
        self._topic, self._group = topic, group
        self._id = 0
        self._held: dict[int, Cursor] = {}

    def find(self, connection: Connection) -> dict[int, int]:
        """How far the group is; nothing if there is no such group."""
        found = fetch_sync(connection, statements.list_cursors(self._topic.id, self._group))
        return {one.partition: one.next_offset for one in found}

    def is_paused(self, connection: Connection) -> bool:
        return bool(self._held) and fetch_sync(connection, statements.is_group_paused(self._id)) == [True]

    def hold(self, connection: Connection, starts: Mapping[int, int]) -> None:
        """Take them, unless that was done; new ones begin at `starts`. Raises TopicError if members have them."""
        if not starts.keys() <= self._held.keys():
            self._take(connection, starts)

    def move(self, connection: Connection, to: Mapping[int, int]) -> None:
        """Move them to what was committed; writes only what has changed. Raises LeaseLost if one is not ours any more."""
        self.hold(connection, to)
        moved = [
            Cursor(partition, offset, self._held[partition].epoch)
            for partition, offset in to.items()
            if offset != self._held[partition].next_offset
        ]
        if not moved:
            return
        if fetch_sync(connection, statements.move_cursors(self._id, moved)) != [True]:
            raise LeaseLost(
                f"group {self._group!r} of topic {self._topic.name!r} was taken over by a member, another query, or a seek; "
                "its cursors stay where they are: start the query again if it is to have them, or give it another group"
            )
        self._held |= {one.partition: one for one in moved}

    def _take(self, connection: Connection, starts: Mapping[int, int]) -> None:
        with connection.transaction():
            execute_sync(connection, statements.make_group(self._topic.id, self._group))
            (group,) = fetch_sync(connection, statements.hold_group(self._topic.id, self._group))
            if group.mode != "partition":
                raise TopicError(
                    f"members of group {self._group!r} share partitions, which Spark cannot take part in; name another group"
                )
            if group.has_members:
                raise TopicError(
                    f"group {self._group!r} of topic {self._topic.name!r} has members that read it at this moment; stop "
                    "them, or name another group"
                )
            taken = fetch_sync(connection, statements.take_cursors(group.id, starts))
        self._id, self._held = group.id, {one.partition: one for one in taken}
