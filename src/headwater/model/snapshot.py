"""Which transactions a snapshot sees, and which streamed changes it therefore already holds.

Pure arithmetic on `pg_snapshot`: transaction ids are 64 bits wide in a snapshot and 32 in the stream, so a streamed one is
first widened to the 64-bit value nearest to the snapshot's end.
"""

from dataclasses import dataclass
from typing import Self

from headwater.model.lsn import Lsn

_EPOCH = 1 << 32
# Transaction ids 0, 1 and 2 are reserved: invalid, bootstrap, frozen.
_FIRST_NORMAL_XID = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`pg_snapshot`: everything below `xmin` has ended, nothing at or above `xmax` had, `running` were running between."""

    xmin: int
    xmax: int
    running: frozenset[int]

    def __post_init__(self) -> None:
        if not _FIRST_NORMAL_XID <= self.xmin <= self.xmax:
            raise ValueError(f"snapshot bounds are not in order: {self.xmin}:{self.xmax}")
        if any(not self.xmin <= xid < self.xmax for xid in self.running):
            raise ValueError(f"a running transaction lies outside of the snapshot {self.xmin}:{self.xmax}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form, `xmin:xmax:xid,xid,...`."""
        try:
            xmin, xmax, running = text.strip().split(":")
            return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))
        except ValueError as exc:
            raise ValueError(f"not a snapshot: {text!r} (expected something like 10:20:10,14)") from exc

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.running)))}"

    def sees(self, xid: int) -> bool:
        """Whether the snapshot sees what the committed transaction of this 64-bit id wrote."""
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)

    def widen(self, xid: int) -> int:
        """The 64-bit id that a 32-bit one stands for: the one nearest to the snapshot's end.

        Right for every transaction within 2^31 of it, and PostgreSQL itself never lets two live ids be further apart.
        """
        candidate = (self.xmax & ~(_EPOCH - 1)) | xid
        if candidate - self.xmax > _EPOCH // 2 and candidate >= _EPOCH + _FIRST_NORMAL_XID:
            return candidate - _EPOCH
        if self.xmax - candidate > _EPOCH // 2:
            return candidate + _EPOCH
        return candidate


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """A table read at a snapshot, and the WAL position `until` that was current, and is flushed, after it was taken."""

    snapshot: Snapshot
    until: Lsn

    def holds(self, xid: int, commit_lsn: Lsn) -> bool:
        """Whether the table as read holds a streamed transaction's changes already, so that they must be skipped.

        `xid` is the 32-bit id of the top-level transaction. The bound retires the rule: a transaction that committed at or
        after `until` is never skipped, so an old snapshot cannot be mistaken for a new one when ids come round again.
        """
        return commit_lsn < self.until and self.snapshot.sees(self.snapshot.widen(xid))
