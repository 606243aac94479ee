"""Where a change stands: in which transaction, at which place in it, and in the history of which server.

A position is a transaction, not a time. From a position and the lineage of its stream comes the event id that stays the
same after every replay.
"""

from dataclasses import dataclass
from typing import NamedTuple

from headwater.model.lsn import Lsn


class Position(NamedTuple):
    """A change: the LSN of its transaction's commit record, and its ordinal among the transaction's row changes from 0."""

    commit_lsn: Lsn
    ordinal: int

    def __str__(self) -> str:
        return f"{self.commit_lsn}:{self.ordinal}"


@dataclass(frozen=True, slots=True)
class TimelineSwitch:
    """The end of a timeline: what lies at or after `end` was written by a later one."""

    timeline: int
    end: Lsn


@dataclass(frozen=True, slots=True)
class Lineage:
    """The history that positions of one stream belong to; two servers never share the same one by accident."""

    system_identifier: str
    timeline: int
    switches: tuple[TimelineSwitch, ...]
    database: str
    slot: str

    def timeline_of(self, lsn: Lsn) -> int:
        """The timeline that wrote `lsn`; it stays the same after every later promotion."""
        return next((switch.timeline for switch in self.switches if lsn < switch.end), self.timeline)

    def end_of(self, timeline: int) -> Lsn | None:
        """Where a timeline ended; None for the present one, and for one that is not part of this lineage."""
        return next((switch.end for switch in self.switches if switch.timeline == timeline), None)

    def continues(self, earlier: "Lineage", until: Lsn) -> bool:
        """Whether what lies before `until` in an earlier lineage is part of this one.

        It is not on another server, nor on a standby that lagged when it was promoted: that one writes its own history from
        the end of what it had, over positions that the old primary had used already.
        """
        if earlier.system_identifier != self.system_identifier:
            return False
        last = Lsn(max(0, until - 1))
        return until == 0 or earlier.timeline_of(last) == self.timeline_of(last)

    def event_id(self, position: Position) -> str:
        """The stable id of a change, the same after any replay."""
        return f"{self._prefix(position.commit_lsn, self.timeline_of(position.commit_lsn))}{position.ordinal}"

    def message_id(self, lsn: Lsn) -> str:
        """The stable id of a logical message, whose position is the one behind its last byte."""
        return f"{self._prefix(lsn, self.timeline_of(Lsn(lsn - 1)))}m"

    def _prefix(self, lsn: Lsn, timeline: int) -> str:
        return f"{self.system_identifier}.{timeline}.{self.database}.{self.slot}.{lsn:X}."
