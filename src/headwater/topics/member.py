"""A member of a group: it is there as long as it renews its lease, and sees to it that those who do not are gone."""

import asyncio
import logging
import os
import socket
import time
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from headwater import failpoints
from headwater.errors import HeadwaterError, TopicError
from headwater.topics import group_statements
from headwater.topics.group_statements import Group, Members
from headwater.topics.line import Line
from headwater.topics.topic import Topic

_log = logging.getLogger(__name__)

# After the end of another's lease, and after a failure: soon, and not at once.
_SOON_SECONDS: Final = 0.05


class Member:
    """Renews once in a third of its lease: two of them may fail. In between it only looks when another lease ends.

    It does so in the event loop: a handler that blocks that for longer than a lease loses its partitions, and its next
    commit raises LeaseLost.
    """

    def __init__(self, line: Line, topic: Topic, group: Group, lease: timedelta) -> None:
        self.id: Final[UUID] = uuid4()
        self._line, self._topic, self._group, self._lease = line, topic, group, lease
        self._label = f"{socket.gethostname()}:{os.getpid()}"

    async def join(self) -> None:
        statement = group_statements.join_group(self._group.id, self._topic.id, self.id, self._label, self._lease)
        await self._line.execute(statement)

    async def others(self) -> Members:
        """All who are there, this one among them."""
        while True:
            found = await self._line.fetch(group_statements.read_group(self._group.id))
            if not found:
                raise gone(self._group)
            if self.id in found[0].members:
                return found[0]
            await self.join()

    async def run(self) -> None:
        """Renew for ever, also through the loss of connections."""
        third = self._lease.total_seconds() / 3
        due = time.monotonic() + third
        wait = third
        while True:
            await asyncio.sleep(wait)
            try:
                is_due = time.monotonic() >= due
                others = await self._beat(renews=is_due)
            except HeadwaterError as exc:
                _log.warning("the lease of a member was not renewed: %s", exc)
                wait = min(1.0, third)
                continue
            if is_due:
                due = time.monotonic() + third
            wait = max(0.0, min(due - time.monotonic(), others))

    async def _beat(self, *, renews: bool) -> float:
        """In how many seconds the next lease of another one ends."""
        if renews:
            failpoints.hit("topics.lease_renewal")
        group_id = self._group.id
        statement = (
            group_statements.renew(group_id, self.id, self._lease)
            if renews
            else group_statements.see_others(group_id, self.id)
        )
        (beat,) = await self._line.fetch(statement)
        if not beat.is_member:
            await self.join()
        if beat.others_seconds is None:
            return self._lease.total_seconds()
        if beat.others_seconds <= 0:
            await self._line.execute(group_statements.expire_members(group_id))
        return max(beat.others_seconds, 0) + _SOON_SECONDS


def gone(group: Group) -> TopicError:
    return TopicError(f"group {group.name!r} of topic {group.topic!r} was dropped; subscribe again to make it anew")
