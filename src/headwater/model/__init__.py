"""The values that travel: positions, changes, messages, snapshots. They know no server and no file."""

from headwater.model.change import UNCHANGED, Change, LogicalMessage, Op, Row, Unchanged
from headwater.model.lsn import Lsn
from headwater.model.message import MESSAGE, Messages
from headwater.model.position import Lineage, Position, TimelineSwitch
from headwater.model.snapshot import Snapshot, SnapshotRead

__all__ = [
    "MESSAGE",
    "UNCHANGED",
    "Change",
    "Lineage",
    "LogicalMessage",
    "Lsn",
    "Messages",
    "Op",
    "Position",
    "Row",
    "Snapshot",
    "SnapshotRead",
    "TimelineSwitch",
    "Unchanged",
]
