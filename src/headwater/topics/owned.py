"""Reading partitions that are this member's alone: in order, from positions in memory, with cursors that follow."""

import logging
import time
from collections.abc import Iterable, Sequence
from uuid import UUID

from headwater.errors import LeaseLost, PositionExpired
from headwater.postgres.statements import Statement
from headwater.topics import group_statements
from headwater.topics.assign import moves
from headwater.topics.batch import Doubt
from headwater.topics.burial import UNKNOWN, Burial
from headwater.topics.group_statements import Cursor, Group
from headwater.topics.holding import Holding
from headwater.topics.line import Line
from headwater.topics.member import Member, gone
from headwater.topics.message import Message
from headwater.topics.reader import Found
from headwater.topics.rounds import Answer, Ask
from headwater.topics.statements import LogRow
from headwater.topics.subscribe_settings import SubscriberSettings
from headwater.topics.topic import Topic
from headwater.topics.wake import Wake
from headwater.topics.window import Part

_log = logging.getLogger(__name__)


class Owned:
    """The partitions of a member change at the boundary of a batch: others get what is too much when it is committed."""

    def __init__(  # noqa: PLR0913 - what a subscriber has
        self,
        line: Line,
        topic: Topic,
        group: Group,
        member: Member,
        wake: Wake,
        settings: SubscriberSettings,
    ) -> None:
        self._line, self._topic, self._group, self._member, self._settings = line, topic, group, member, settings
        self._wake, self._rounds = wake, line.rounds(topic, group)
        self._burial = Burial(line, group)
        self._holdings: dict[int, Holding] = {}
        self._doubts: list[Doubt] = []
        # The generation that the holdings are of, and the newest that a poll has seen.
        self._generation = self._seen = -1
        self._is_paused = self._is_refused = False
        self._turn = 0
        # Whether more is there than the last poll has read, and the answer to one that went out with a commit.
        self._has_more = False
        self._carried: Answer | None = None

    async def open(self) -> None:
        await self._refresh()

    async def poll(self) -> Found:
        answer, self._carried = self._carried, None
        if self._is_refused:
            # It would go on from where nobody knows whether it is right; take begins again at the cursors.
            return Found.MORE
        if answer is None:
            self._wake.begin()
            answer = await self._rounds.ask(self._polling())
            self._wake.answered()
        if answer is None:
            raise gone(self._group)
        self._seen, self._is_paused = answer.generation, answer.is_paused
        found = await self._add(answer.frames)
        if answer.has_staged and await self._line.number(self._topic):
            return Found.MORE
        if self._is_paused:
            return Found.NOTHING
        share = self._share(self._settings.max_messages)
        self._has_more = answer.is_cut or any(
            one.owed_since is None and len(one.buffer) >= share for one in self._holdings.values()
        )
        if self._has_more:
            return Found.MORE
        if answer.has_staged:
            return Found.COMING
        return Found.SOME if found else Found.NOTHING

    def concerns(self, partitions: Sequence[int]) -> bool:
        return not partitions or any(partition in self._holdings for partition in partitions)

    async def take(self) -> Sequence[Part]:
        await self._settle_doubts()
        if self._is_stale():
            await self._refresh()
        if self._is_paused:
            return []
        parts: list[Part] = []
        room, room_bytes = self._settings.max_messages, self._settings.max_bytes
        for holding in self._in_turn():
            if holding.is_suspect and not self._settings.is_at_most_once:
                if not parts and (alone := await self._take_alone(holding)) is not None:
                    return [alone]
            elif room > 0 and room_bytes > 0:
                part = holding.take(room, room_bytes)
                parts.append(part)
                room -= len(part.offsets)
                room_bytes -= sum(len(row.frame) for row in part.rows)
        return sorted(parts, key=lambda part: part.partition)

    async def commit(self, parts: Sequence[Part]) -> None:
        try:
            if self._has_more and not self._settings.is_at_most_once:
                await self._commit_and_read(parts)
            else:
                await self._commit(parts)
        except LeaseLost:
            self.refused()
            raise

    def committing(self, parts: Sequence[Part]) -> Statement[bool]:
        return group_statements.settle(self._group.id, parts)

    def doubted(self, doubt: Doubt) -> None:
        self._doubts.append(doubt)

    def refused(self) -> None:
        self._is_refused = True

    async def bury(self, message: Message, part: Part, reason: str) -> None:
        try:
            await self._burial.of_one(message, part, reason)
        except LeaseLost:
            self.refused()
            raise

    async def fail(self, parts: Sequence[Part], reason: str) -> None:
        # First of all, since what follows may fail: without it, the next commit would pass over what comes again.
        self.refused()
        holding = self._held(parts[0])
        if len(parts) == 1 and holding is not None and parts[0].first_offset <= holding.suspect_until:
            await self._bury_all(parts[0], reason)
            return
        partitions, epochs = [part.partition for part in parts], [part.epoch for part in parts]
        await self._line.execute(group_statements.count_failure(self._group.id, partitions, epochs))

    async def leave(self) -> None:
        await self._settle_doubts()
        given = [one.partition for one in self._holdings.values() if not one.is_clean]
        await self._line.execute(group_statements.leave_group(self._group.id, self._member.id, given))

    def _share(self, most: int) -> int:
        """What is read of one partition at a time."""
        return max(1, most // max(1, len(self._holdings)))

    def _held(self, part: Part) -> Holding | None:
        """What it is a part of, if that is of the same epoch."""
        holding = self._holdings.get(part.partition)
        return holding if holding is not None and holding.epoch == part.epoch else None

    def _in_turn(self) -> list[Holding]:
        """Those of which something is there, each one the first in turn."""
        holdings = [self._holdings[partition] for partition in sorted(self._holdings)]
        self._turn = (self._turn + 1) % max(1, len(holdings))
        return [
            one for one in holdings[self._turn :] + holdings[: self._turn] if one.owed_since is None and len(one.buffer) > 0
        ]

    async def _commit(self, parts: Sequence[Part]) -> None:
        waits = self._settings.commit_waits or self._settings.is_at_most_once
        if await self._rounds.insist(Ask(settled=parts, waits=waits), self._settings.lease) is None:
            raise self._dropped()
        self._committed(parts)

    async def _commit_and_read(self, parts: Sequence[Part]) -> None:
        """Commit with the poll that comes next anyhow, which spares a round trip."""
        self._has_more, held = False, self._holdings
        self._wake.begin()
        answer = await self._rounds.insist(self._polling(parts), self._settings.lease)
        self._wake.answered()
        if answer is None:
            raise self._dropped()
        self._committed(parts)
        # If partitions have changed hands meanwhile, it was read from where nobody goes on.
        self._carried = answer if held is self._holdings else None

    def _polling(self, settled: Sequence[Part] = ()) -> Ask:
        share, share_bytes = self._share(self._settings.max_messages), self._share(self._settings.max_bytes)
        wanted = {
            one.partition: one.buffer.read
            for one in self._holdings.values()
            if one.owed_since is None and len(one.buffer) < share
        }
        return Ask(wanted, share, share_bytes, settled, self._settings.commit_waits)

    def _dropped(self) -> LeaseLost:
        return LeaseLost(f"group {self._group.name!r} of topic {self._group.topic!r} was dropped; nothing was committed")

    def _committed(self, parts: Sequence[Part]) -> None:
        self._doubts = [doubt for doubt in self._doubts if doubt.parts is not parts]
        for part in parts:
            if (holding := self._held(part)) is not None:
                holding.commit(part.next_offset)

    async def _settle_doubts(self) -> None:
        """See by the cursors what became of commits whose transactions have ended; what was rolled back comes again."""
        ended = [doubt for doubt in self._doubts if doubt.has_ended]
        if not ended:
            return
        cursors = await self._line.fetch(group_statements.read_cursors(self._group.id, self._topic.id))
        places = {(cursor.partition, cursor.epoch): cursor.next_offset for cursor in cursors}
        for part in (part for doubt in ended for part in doubt.parts):
            # Without one of its epoch it is not ours any more, and we hear of that elsewhere.
            place = places.get((part.partition, part.epoch), part.next_offset)
            if place < part.next_offset:
                self.refused()
            else:
                self._committed([part])
        self._doubts = [doubt for doubt in self._doubts if doubt not in ended]

    async def _add(self, rows: Iterable[LogRow]) -> bool:
        """Keep what was read; whether there was something."""
        found = False
        for row in rows:
            holding, first = self._holdings[row.partition], row.last_offset - row.count + 1
            if first > holding.buffer.read:
                await self._skip(holding, first)
            if first <= holding.buffer.read <= row.last_offset:
                found = True
                holding.buffer.add(row)
        return found

    async def _skip(self, holding: Holding, oldest: int) -> None:
        """Go on at the oldest that is left, once all before it is dealt with."""
        if len(holding.buffer) > 0 or not holding.is_clean:
            return
        place = f"partition {holding.partition} of topic {self._topic.name!r}"
        if self._settings.on_expired == "fail":
            raise PositionExpired(place, holding.buffer.read, oldest)
        _log.warning("messages %d to %d of %s were removed before they were read", holding.committed, oldest - 1, place)
        await self._commit([Part(holding.partition, holding.epoch, range(holding.committed, oldest), [])])
        holding.rewind()

    async def _suspect(self, holding: Holding) -> None:
        """What was given out too often goes out one by one from here on."""
        is_alone = holding.committed <= holding.suspect_until
        if self._settings.is_at_most_once or is_alone or holding.attempts < self._settings.max_attempts:
            return
        holding.suspect_until, holding.attempts = holding.committed + self._settings.max_messages - 1, 0
        await self._note_suspect(holding, 0)

    async def _take_alone(self, holding: Holding) -> Part | None:
        """One message, of which is written down first that it is given out; one that was before is dead.

        That is about the one at the cursor: those after it go out when it has, and may not be committed yet.
        """
        was_given = holding.attempts > 0 and holding.is_clean
        if holding.attempts == 0:
            await self._note_suspect(holding, 1)
            holding.attempts = 1
        part = holding.take(1, 1)
        if not was_given:
            return part
        try:
            await self._bury_all(part, UNKNOWN)
        except BaseException:
            # It was taken, and is neither given out nor dead: begin again at the cursor.
            self.refused()
            raise
        return None

    async def _note_suspect(self, holding: Holding, attempts: int) -> None:
        await self._line.execute(
            group_statements.suspect(self._group.id, holding.partition, holding.epoch, holding.suspect_until, attempts)
        )

    async def _bury_all(self, part: Part, reason: str) -> None:
        await self._burial.of_all(part, reason)
        await self._commit([part])

    def _is_stale(self) -> bool:
        return self._is_refused or self._seen > self._generation or any(map(self._may_go, self._holdings.values()))

    def _may_go(self, holding: Holding) -> bool:
        """Whether it is owed, and need not be waited for any more: nothing is open, or that has taken too long."""
        if holding.owed_since is None:
            return False
        return holding.is_clean or time.monotonic() - holding.owed_since > self._settings.lease.total_seconds()

    async def _refresh(self) -> None:
        """Agree with the others on what is whose."""
        if self._is_refused:
            self._holdings, self._doubts = {}, []
        # It is done again unless it comes to its end.
        self._generation = -1
        while True:
            there = await self._member.others()
            cursors = await self._line.fetch(group_statements.read_cursors(self._group.id, self._topic.id))
            owners = {cursor.partition: cursor.member for cursor in cursors}
            wanted = moves(there.members, owners)
            due = {one: heir for one, heir in wanted.items() if self._is_due(one, owners[one], there.members)}
            if not due:
                break
            # Done by us or, if the generation has passed, by somebody else: look again.
            await self._line.execute(
                group_statements.assign_partitions(self._group.id, there.generation, self._member.id, due)
            )
        self._adopt(cursors, wanted.keys())
        self._is_refused = False
        await self._look_over(cursors)
        self._generation = there.generation

    def _is_due(self, partition: int, owner: UUID | None, members: Sequence[UUID]) -> bool:
        """Whether a partition can change hands now: nobody has it, or this member, who may give it up."""
        if owner == self._member.id:
            holding = self._holdings.get(partition)
            return holding is None or holding.is_clean or self._may_go(holding)
        return owner not in members

    def _adopt(self, cursors: Sequence[Cursor], leaving: Iterable[int]) -> None:
        held, owed = self._holdings, set(leaving)
        self._holdings, self._carried = {}, None
        for cursor in cursors:
            if cursor.member != self._member.id:
                continue
            holding = held.get(cursor.partition)
            if holding is None or holding.epoch != cursor.epoch:
                holding = Holding.of(cursor)
            self._holdings[cursor.partition] = holding
            holding.owed_since = (holding.owed_since or time.monotonic()) if cursor.partition in owed else None

    async def _look_over(self, cursors: Iterable[Cursor]) -> None:
        """What failed too often before, and what is gone before it was read."""
        for cursor in cursors:
            if (holding := self._holdings.get(cursor.partition)) is not None:
                await self._suspect(holding)
                if cursor.first_offset > holding.committed:
                    await self._skip(holding, cursor.first_offset)
