"""Tables that are being read as a whole, as an offset logs it, and what is left of that when it is done. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.capture.tables import Name
from headwater.model import Lsn, Position, Snapshot, SnapshotRead


@dataclass(frozen=True, slots=True)
class Join:
    """Tables that were read at a snapshot, and streamed transactions that their rows therefore hold already."""

    tables: tuple[Name, ...]
    read: SnapshotRead

    def to_json(self) -> dict[str, Any]:
        return {"tables": _listed(self.tables), "snapshot": str(self.read.snapshot), "until": str(self.read.until)}

    @classmethod
    def from_json(cls, logged: Mapping[str, Any]) -> "Join":
        return cls(_names(logged["tables"]), _read(logged["snapshot"], logged["until"]))


@dataclass(frozen=True, slots=True)
class Load:
    """An attempt to read tables: their changes wait from `position` on, until all of its pieces are delivered.

    It is being opened as long as there is no `read`. `requests` are those that it serves, one for each table. `position`
    moves on when it `is_complete`, up to that of the stream; then the tables are like any others.
    """

    attempt: str
    tables: tuple[Name, ...]
    requests: tuple[int, ...]
    position: Position
    read: SnapshotRead | None = None
    pieces: int = 0
    delivered: int = 0
    is_complete: bool = False

    @property
    def join(self) -> Join:
        if self.read is None:
            raise ValueError(f"attempt {self.attempt} has no snapshot yet")
        return Join(self.tables, self.read)

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "tables": _listed(self.tables),
            "requests": list(self.requests),
            "lsn": str(self.position.commit_lsn),
            "ordinal": self.position.ordinal,
            "snapshot": None if self.read is None else str(self.read.snapshot),
            "until": None if self.read is None else str(self.read.until),
            "pieces": self.pieces,
            "delivered": self.delivered,
            "complete": self.is_complete,
        }

    @classmethod
    def from_json(cls, logged: Mapping[str, Any]) -> "Load":
        snapshot = logged["snapshot"]
        return cls(
            str(logged["attempt"]),
            _names(logged["tables"]),
            tuple(int(number) for number in logged["requests"]),
            Position(Lsn.parse(str(logged["lsn"])), int(logged["ordinal"])),
            None if snapshot is None else _read(snapshot, logged["until"]),
            int(logged["pieces"]),
            int(logged["delivered"]),
            bool(logged["complete"]),
        )


def _read(snapshot: object, until: object) -> SnapshotRead:
    return SnapshotRead(Snapshot.parse(str(snapshot)), Lsn.parse(str(until)))


def _listed(tables: Sequence[Name]) -> list[list[str]]:
    return [list(table) for table in tables]


def _names(listed: Sequence[Sequence[str]]) -> tuple[Name, ...]:
    return tuple((str(schema), str(name)) for schema, name in listed)
