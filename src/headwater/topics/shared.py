"""Reading ranges that members of a group claim, any number of them from one partition at once."""

import logging
import random
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from headwater.errors import LeaseLost, PositionExpired
from headwater.postgres.statements import Statement
from headwater.topics import group_statements
from headwater.topics.batch import Doubt
from headwater.topics.burial import UNKNOWN, Burial
from headwater.topics.group_statements import Claim, Group
from headwater.topics.line import Line
from headwater.topics.member import Member, gone
from headwater.topics.message import Message
from headwater.topics.reader import Found
from headwater.topics.subscribe_settings import SubscriberSettings
from headwater.topics.topic import Topic
from headwater.topics.wake import Wake
from headwater.topics.window import Part

_log = logging.getLogger(__name__)


class Shared:
    """A claim lasts until it is committed, or until its member is gone; a batch is one claim."""

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
        self._wake = wake
        self._burial = Burial(line, group)
        # All claims that are this member's, by partition and first offset with their epochs, and those that were not given
        # out yet.
        self._claims: dict[tuple[int, int], int] = {}
        self._ready: deque[Part] = deque()
        self._doubts: list[Doubt] = []
        self._is_paused = False
        # Not all begin at the same partition.
        self._begin_at = random.randrange(topic.partitions)

    async def open(self) -> None:
        pass

    async def poll(self) -> Found:
        self._wake.begin()
        found = await self._look()
        self._wake.answered()
        return found

    async def _look(self) -> Found:
        self._settle_doubts()
        known = sorted(self._claims)
        rows = await self._line.fetch(group_statements.look(self._topic.id, self._group.id, self._member.id, known))
        if not rows:
            raise gone(self._group)
        (looked,) = rows
        self._is_paused = looked.is_paused
        if looked.has_staged and await self._line.number(self._topic):
            return Found.MORE
        if looked.is_paused:
            return Found.NOTHING
        if self._ready:
            return Found.MORE
        found = await self._claim(known) if looked.has_free or looked.has_new else Found.NOTHING
        return Found.COMING if looked.has_staged and found is not Found.MORE else found

    def concerns(self, partitions: Sequence[int]) -> bool:
        return True

    async def take(self) -> Sequence[Part]:
        while self._ready and not self._is_paused:
            # Here until it is known what becomes of it.
            goes_out = await self._goes_out(self._ready[0])
            part = self._ready.popleft()
            if goes_out:
                return [part]
        return []

    async def commit(self, parts: Sequence[Part]) -> None:
        once, waits = self._settings.is_at_most_once, self._settings.commit_waits
        claims = [(part.partition, part.first_offset) for part in parts]
        epochs = [part.epoch for part in parts]
        is_again = any(doubt.parts is parts for doubt in self._doubts)
        first = group_statements.settle_claims(self._group.id, claims, epochs, is_again=is_again, waits=waits or once)
        # After a lost answer, a claim that is gone was settled by us, or by another one who has dealt with it; that does not
        # do for one who may not give it out if another did.
        again = first if once else group_statements.settle_claims(self._group.id, claims, epochs, is_again=True, waits=waits)
        try:
            await self._line.insist(first, self._settings.lease, again)
        finally:
            self._forget(parts)

    def committing(self, parts: Sequence[Part]) -> Statement[bool]:
        return group_statements.settle_claims(
            self._group.id,
            [(part.partition, part.first_offset) for part in parts],
            [part.epoch for part in parts],
            is_again=False,
            waits=True,
        )

    def doubted(self, doubt: Doubt) -> None:
        self._doubts.append(doubt)

    def refused(self) -> None:
        pass

    async def bury(self, message: Message, part: Part, reason: str) -> None:
        await self._burial.of_one(message, part, reason)

    async def fail(self, parts: Sequence[Part], reason: str) -> None:
        # First of all, since what follows may fail: what a member does not know of, it claims again.
        self._forget(parts)
        for part in parts:
            if len(part.offsets) == 1 and part.attempts >= self._settings.max_attempts:
                await self._bury_all(part, reason)
                continue
            claim = (part.partition, part.first_offset)
            await self._line.execute(group_statements.free_claims(self._group.id, [claim], [part.epoch]))

    async def leave(self) -> None:
        await self._line.execute(group_statements.leave_group(self._group.id, self._member.id))

    def _forget(self, parts: Sequence[Part]) -> None:
        for part in parts:
            claim = (part.partition, part.first_offset)
            # Unless it was claimed again since.
            if self._claims.get(claim) == part.epoch:
                del self._claims[claim]

    def _settle_doubts(self) -> None:
        """A claim whose transaction has ended is either gone, or to be claimed again; until then nobody waits for it."""
        ended = [doubt for doubt in self._doubts if doubt.has_ended]
        for doubt in ended:
            self._forget(doubt.parts)
        self._doubts = [doubt for doubt in self._doubts if doubt not in ended]

    async def _goes_out(self, part: Part) -> bool:
        """Of a single message that was claimed too often is written down first that it goes out; if it was, it is dead."""
        if len(part.offsets) > 1 or part.attempts < self._settings.max_attempts or self._settings.is_at_most_once:
            return True
        if part.attempts == self._settings.max_attempts:
            marking = group_statements.mark_alone(self._group.id, part.partition, part.first_offset, part.epoch)
            return await self._line.execute(marking) > 0
        # Somebody else has it, and deals with it.
        with suppress(LeaseLost):
            await self._bury_all(part, UNKNOWN)
        return False

    async def _claim(self, known: Sequence[tuple[int, int]]) -> Found:
        claims = await self._line.fetch(
            group_statements.claim(
                self._topic.id,
                self._group.id,
                self._member.id,
                known,
                most=self._settings.max_messages,
                most_bytes=self._settings.max_bytes,
                max_attempts=self._settings.max_attempts,
                begin_at=self._begin_at,
            )
        )
        # Somebody else was quicker.
        if not claims:
            return Found.SOME
        (claim,) = claims
        await self._read(claim)
        self._begin_at = (claim.partition + 1) % self._topic.partitions
        is_full = claim.last_offset - claim.first_offset + 1 >= self._settings.max_messages
        return Found.MORE if is_full else Found.SOME

    async def _read(self, claim: Claim) -> None:
        rows = await self._line.fetch(
            group_statements.read_range(self._topic.id, claim.partition, claim.first_offset, claim.last_offset)
        )
        oldest = rows[0].last_offset - rows[0].count + 1 if rows else claim.last_offset + 1
        if oldest > claim.first_offset:
            place = f"partition {claim.partition} of topic {self._topic.name!r}"
            if self._settings.on_expired == "fail":
                raise PositionExpired(place, claim.first_offset, oldest)
            _log.warning("messages %d to %d of %s were removed before they were read", claim.first_offset, oldest - 1, place)
        # The whole range, also of what is not there any more: it is by its beginning that the claim is settled.
        part = Part(claim.partition, claim.epoch, range(claim.first_offset, claim.last_offset + 1), rows, claim.attempts)
        self._claims[claim.partition, claim.first_offset] = claim.epoch
        if rows:
            self._ready.append(part)
        else:
            await self.commit([part])

    async def _bury_all(self, part: Part, reason: str) -> None:
        await self._burial.of_all(part, reason)
        await self.commit([part])
