"""How far an outbox is delivered, as Spark logs it: a key of the table while that is read, then a place in the stream.

The number of lanes and their rule are part of it, so that a logged range is split again as it was, whatever the options say
by then. So are the transactions of the range that ends there: whoever delivers it writes them down.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

from headwater.errors import PositionError
from headwater.model import Lsn, Position, Snapshot, SnapshotRead
from headwater.outbox.recovery import Key
from headwater.spark.sinks.sink import Span
from headwater.spark.sources.content import Content

# Raised when the meaning of a logged range changes.
VERSION = 1


class Phase(StrEnum):
    """What the range that ends at an offset is: a part of the table, its last part, or one of the stream."""

    RECOVERING = "recovering"
    RECOVERED = "recovered"
    STREAMING = "streaming"


@dataclass(frozen=True, slots=True)
class OutboxOffset:
    """Everything before it is delivered, of the slot of one `generation`.

    While it is recovering, the rows up to `key` are; nothing yet if there is none. Then all changes before `position` are.
    As long as transactions may come that the reading of the table has covered, `read` tells which. `keyed` if lanes are by
    key. `xids` are the transactions of the range that ends here, and `newest_at` the time of its newest message, where rows
    do not tell their transaction.
    """

    system: str
    slot: str
    generation: str
    timeline: int
    lanes: int
    keyed: bool
    position: Position
    phase: Phase = Phase.STREAMING
    key: Key | None = None
    read: SnapshotRead | None = None
    content: Content = field(default_factory=Content)
    xids: tuple[int, ...] = ()
    newest_at: datetime | None = None

    @property
    def is_recovering(self) -> bool:
        """Whether more of the table is to be read."""
        return self.phase is Phase.RECOVERING

    @property
    def bare(self) -> "OutboxOffset":
        """Where it is, without what the range that ends there holds."""
        return replace(self, content=Content(), xids=(), newest_at=None)

    def to_json(self) -> dict[str, Any]:
        """The form that Spark logs, and compares as text."""
        return {
            "version": VERSION,
            "source": "outbox",
            "system": self.system,
            "slot": self.slot,
            "generation": self.generation,
            "timeline": self.timeline,
            "lanes": self.lanes,
            "keyed": self.keyed,
            "lsn": str(self.position.commit_lsn),
            "ordinal": self.position.ordinal,
            "phase": self.phase.value,
            "key": None if self.key is None else list(self.key),
            "read": None if self.read is None else [str(self.read.snapshot), str(self.read.until)],
            "holds": self.content.to_json(),
            "xids": _runs(self.xids),
            "newest": None if self.newest_at is None else self.newest_at.isoformat(),
        }

    @classmethod
    def from_json(cls, logged: Mapping[str, object]) -> "OutboxOffset":
        """The offset that was logged; raises PositionError for one that is not ours."""
        try:
            if logged["source"] != "outbox" or logged["version"] != VERSION:
                raise ValueError("another source, or another release")
            key, read, newest = cast("Any", logged["key"]), cast("Any", logged["read"]), logged["newest"]
            return cls(
                str(logged["system"]),
                str(logged["slot"]),
                str(logged["generation"]),
                int(str(logged["timeline"])),
                int(str(logged["lanes"])),
                logged["keyed"] is True,
                Position(Lsn.parse(str(logged["lsn"])), int(str(logged["ordinal"]))),
                Phase(str(logged["phase"])),
                None if key is None else (str(key[0]), str(key[1])),
                None if read is None else SnapshotRead(Snapshot.parse(read[0]), Lsn.parse(read[1])),
                Content.from_json(cast("Mapping[str, object]", logged["holds"])),
                _numbers(str(logged["xids"])),
                None if newest is None else datetime.fromisoformat(str(newest)),
            )
        except (KeyError, ValueError, TypeError) as exc:
            raise PositionError(
                "the checkpoint directory is not one of a `headwater.outbox` source; name another, or remove it: what is "
                "delivered stands in the database"
            ) from exc


def span_between(before: OutboxOffset | None, end: OutboxOffset) -> Span:
    """The range of a batch, as sinks are told it."""
    known = before is not None and before.generation == end.generation
    return Span(before.position if before is not None and known else Position(Lsn(0), 0), end.position)


def _runs(numbers: Iterable[int]) -> str:
    """Numbers as `7,9-12`: those of transactions come in runs."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _numbers(runs: str) -> tuple[int, ...]:
    found: list[int] = []
    for run in filter(None, runs.split(",")):
        first, _, last = run.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)
