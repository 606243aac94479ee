"""Frames of Creek as the sink's writer takes them, and how far their tables are: that is in the consumer's subscriptions.

A table's rows and its place in the stream are in one transaction. A frame that does not go on where its table is, because
that was loaded or taken out meanwhile, is left out as a whole: what it holds comes again from where the table is.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from headwater.creek.consumer.mapping import Target
from headwater.creek.consumer.statements import Join, Moved, Subscription, hold_subscriptions, move_subscriptions
from headwater.errors import SinkUnavailable
from headwater.model import Lsn, Position
from headwater.postgres.connect import Connection
from headwater.postgres.replication.columnar import Group
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.creek_apply.settings import SINK
from headwater.spark.frame import Frame
from headwater.spark.letters import Letter
from headwater.spark.sinks.postgres.lane import Inputs
from headwater.spark.sinks.postgres.log import Mask
from headwater.spark.sinks.postgres.positions import hold
from headwater.spark.sinks.postgres.session import Address
from headwater.spark.sinks.postgres.statements import LanePosition, Table
from headwater.spark.sinks.postgres.wire import Frames
from headwater.spark.sinks.sink import Span
from headwater.spark.sources.creek.frames import CreekFrame
from headwater.spark.sources.creek.messages import Ints

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A standby that lagged has taken its place, or a backup: what is there says where to begin again.
SET_BACK: Final = "the target has less of stream {stream} than it had; it is gone on with from there"
# The operation of a message that cannot be read is not known.
_UNKNOWN_OP = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed(LanePosition):
    """How far a subscription is, and what it knows."""

    subscription: Subscription = field()

    def is_at(self, frame: CreekFrame) -> bool:
        """Whether a frame goes on where the table is, or before; raises SinkUnavailable if the table was set back."""
        one, place = self.subscription, self.subscription.place
        if not one.is_active or one.error is not None or one.generation != frame.generation or place is None:
            return False
        if place.sequence < frame.start.sequence:
            raise SinkUnavailable(SINK, SET_BACK.format(stream=one.stream))
        return True


class CreekFrames(Frames):
    """The frames of a task, decoded."""

    def __init__(self, frames: Sequence[CreekFrame]) -> None:
        super().__init__(frames)
        self.creek_frames = frames

    @property
    def tables(self) -> list[Table]:
        return list(dict.fromkeys(frame.table.target.name for frame in self.creek_frames))

    @property
    def changes(self) -> int:
        return super().changes + sum(len(frame.unreadable) for frame in self.creek_frames)

    @property
    def ends(self) -> dict[Table, CreekFrame]:
        """A frame of each table: all of them end at the same place."""
        return {frame.table.target.name: frame for frame in self.creek_frames}

    def last(self, table: Table) -> tuple[Lsn, datetime] | None:
        """Commit position and time of the last change of a table."""
        found: tuple[int, int, int] | None = None
        for number, group in self._groups:
            if (group.relation.schema, group.relation.name) == table and len(group):
                frame = self._frame(number)
                places, lsn = group.places, int(frame.lsns_of(group.messages[-1:])[0])
                one = (int(places.commit_lsn[-1]), lsn, int(places.committed_at[-1]))
                found = one if found is None else max(found, one)
        return None if found is None else (Lsn(found[1]), _EPOCH + timedelta(microseconds=found[2]))

    def joined_at(self, table: Table, join: Join) -> int | None:
        """Where the first change of a table is that came after its snapshot, if there is one: its rows hold no later one."""
        if join.end is None:
            return None
        found: list[int] = []
        for number, group in self._groups:
            if (group.relation.schema, group.relation.name) == table:
                is_past = self._frame(number).lsns_of(group.messages) >= int(join.end)
                found += group.places.commit_lsn[is_past][:1].tolist()
        return min(found, default=None)

    def unreadable(self, positions: Iterable[LanePosition], address: Address) -> list[Letter]:
        known = {(one.schema, one.table): one for one in positions if isinstance(one, Subscribed)}
        return [
            _letter(frame, one.sequence, one.message, one.reason, address)
            for frame in self.creek_frames
            if frame.unreadable and (at := known.get(frame.table.target.name)) is not None and at.is_at(frame)
            for one in frame.unreadable
            if one.sequence >= at.position.commit_lsn
        ]

    def _is_applied(self, frame: Frame, group: Group, known: Sequence[LanePosition]) -> Mask:
        at = next((one for one in known if isinstance(one, Subscribed)), None)
        if at is None or not isinstance(frame, CreekFrame) or not at.is_at(frame):
            return np.ones(len(group), np.bool_)
        places = group.places.commit_lsn
        applied: Mask = places < int(at.position.commit_lsn)
        join = at.subscription.join
        joined_at = self.joined_at((at.schema, at.table), join)
        may_be_held = places < joined_at if joined_at is not None else np.ones(len(group), np.bool_)
        return applied | (may_be_held & _held(join, group.places.xid, frame.lsns_of(group.messages)))

    def _frame(self, number: int) -> CreekFrame:
        frame = self._frames[number]
        if not isinstance(frame, CreekFrame):
            raise TypeError(f"a frame of Creek was expected, not {type(frame).__name__}")
        return frame


def _held(join: Join, xids: Ints, lsns: Ints) -> Mask:
    """The changes that the rows of a snapshot hold already."""
    found = np.zeros(len(lsns), np.bool_)
    if join.skip_lsn is not None:
        found |= lsns <= int(join.skip_lsn)
    if join.read is not None:
        # Nearly all come after the snapshot.
        for number in np.flatnonzero(lsns < int(join.read.until)).tolist():
            found[number] |= join.read.holds(int(xids[number]), Lsn(int(lsns[number])))
    return found


@dataclass(frozen=True, slots=True)
class SubscriptionLedger:
    """Keeps how far tables are in the consumer's subscriptions; writing is up to the run that has taken the last epoch."""

    address: Address
    epoch: int

    def hold(self, connection: Connection, inputs: Inputs) -> list[Subscribed]:
        hold(connection, self.address, self.epoch, inputs.locks, [])
        targets = [Target(*table) for table in inputs.tables]
        return [subscribed(one) for one in fetch_sync(connection, hold_subscriptions(targets))]

    def move_on(self, connection: Connection, positions: Sequence[LanePosition], inputs: Inputs, _span: Span) -> None:
        if not isinstance(inputs, CreekFrames):
            raise TypeError(f"frames of Creek were expected, not {type(inputs).__name__}")
        ends = inputs.ends
        moved: dict[int, list[Moved]] = {}
        for one in positions:
            frame = ends[one.schema, one.table]
            end = frame.end
            if isinstance(one, Subscribed) and one.is_at(frame) and one.position <= Position(Lsn(end.sequence), 0):
                lsn, at = inputs.last((one.schema, one.table)) or (None, None)
                begun = next(iter(end.begun.values()), None)
                is_joined = inputs.joined_at((one.schema, one.table), one.subscription.join) is not None
                moved.setdefault(end.sequence, []).append(Moved(frame.table.target, begun, lsn, at, is_joined))
        for sequence, some in moved.items():
            execute_sync(connection, move_subscriptions(some, sequence))


def subscribed(one: Subscription) -> Subscribed:
    """A subscription as the writer knows positions: the first message that is not applied yet."""
    target = Target.parse(one.target)
    place = one.place
    return Subscribed(
        schema=target.schema,
        table=target.table,
        lanes=1,
        lane=0,
        commit_lsn=Lsn(0 if place is None else place.sequence + 1),
        ordinal=0,
        system_identifier=None,
        timeline=None,
        subscription=one,
    )


def _letter(frame: CreekFrame, sequence: int, message: bytes, reason: str, address: Address) -> Letter:
    """What is kept of a message that cannot be read: all of it, and why."""
    target, position = frame.table.target, Position(Lsn(sequence), 0)
    content = json.dumps({"message": b64encode(message).decode()})
    envelope = {
        "commit_lsn": sequence,
        "ordinal": 0,
        "xid": 0,
        "committed_at": datetime.now(UTC).isoformat(),
        "op": _UNKNOWN_OP,
        "schema": target.schema,
        "table": target.table,
        "key": None,
        "before": None,
        "after": content,
        "unchanged": [],
    }
    return Letter(
        pipeline=address.pipeline,
        sink=address.sink,
        event_id=frame.lineage.event_id(position),
        schema=target.schema,
        table=target.table,
        op=_UNKNOWN_OP,
        position=position,
        xid=0,
        committed_at=datetime.now(UTC),
        key=None,
        reason=reason,
        envelope=envelope,
    )
