"""What a range holds, in figures: logged with its end, so that whoever delivers it can report it without reading it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.cut import Index, big_endian
from headwater.postgres.replication.messages import Begin, Truncate
from headwater.postgres.replication.pgoutput import decode, expect, parse_relation


@dataclass(frozen=True, slots=True)
class Content:
    """How many changes of which tables, and when the last of them was committed."""

    changes: int = 0
    committed_at: datetime | None = None
    tables: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        at = None if self.committed_at is None else self.committed_at.isoformat()
        return {"changes": self.changes, "committed_at": at, "tables": dict(self.tables)}

    @classmethod
    def from_json(cls, logged: Mapping[str, object]) -> "Content":
        at, tables = logged["committed_at"], logged["tables"]
        if not isinstance(tables, Mapping):
            raise ValueError("the tables of a range are counted by name")
        committed_at = None if at is None else datetime.fromisoformat(str(at))
        return cls(int(str(logged["changes"])), committed_at, {str(name): int(count) for name, count in tables.items()})


def content_of(batches: Iterable[Batch]) -> Content:
    """The figures of a range."""
    tables: Counter[str] = Counter()
    committed_at = None
    for batch in batches:
        index = Index.of(batch)
        names = _names(index)
        tables.update({names[oid]: count for oid, count in _changes(index).items()})
        committed_at = _committed_at(index) or committed_at
    return Content(sum(tables.values()), committed_at, dict(sorted(tables.items())))


def _changes(index: Index) -> Counter[int]:
    """How many changes there are of each table, by oid."""
    tags, batch = index.tags, index.batch
    rows = np.flatnonzero((tags == ord("I")) | (tags == ord("U")) | (tags == ord("D")))
    oids, counts = np.unique(big_endian(batch.data, batch.bounds[rows] + 1 + batch.xid_bytes, 4), return_counts=True)
    found = Counter(dict(zip(oids.tolist(), counts.tolist(), strict=True)))
    for at in np.flatnonzero(tags == ord("T")).tolist():
        message = decode(batch.message(at), streamed=batch.streamed)
        if isinstance(message, Truncate):
            found.update(message.relation_oids)
    return found


def _names(index: Index) -> dict[int, str]:
    """The tables by oid; of one that was renamed on the way, the last name."""
    batch = index.batch
    sent = (b"R" + bytes(batch.message(at)[1 + batch.xid_bytes :]) for at in np.flatnonzero(index.tags == ord("R")).tolist())
    return {relation.oid: relation.table for relation in map(parse_relation, (*batch.relations.values(), *sent))}


def _committed_at(index: Index) -> datetime | None:
    """When the last change was committed; a transaction without any, such as a heartbeat, may stand behind it."""
    changes = np.flatnonzero(index.steps)
    begins = np.flatnonzero(index.tags[: changes[-1] if len(changes) else 0] == ord("B"))
    begin = expect(Begin, index.batch.message(int(begins[-1]))) if len(begins) else index.batch.begin
    return None if begin is None else begin.committed_at
