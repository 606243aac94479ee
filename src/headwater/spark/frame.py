"""What travels from the planner to the tasks: a run of one lane's changes, still as the server sent them.

A DataFrame of shape `wire` has one row per frame. Sinks that encode themselves, or write what the server wrote, take these;
`unpack` gives the frame of a row. Frames are pickles: they are read by the application that wrote them, never from storage.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import pyarrow as pa

from headwater.model import Lineage, Lsn
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.messages import Relation
from headwater.postgres.types import PgType, Types


@dataclass(frozen=True, slots=True)
class LayoutColumn:
    """A column that is sent: `number` stays the same when it is renamed, and is None if it is not known.

    Rows that are older than the column have `missing` there if it `has_missing`. Where that is not so but it `has_default`,
    they may have been given any value when the column was added, and no change tells which. It is `not_null` as far as is
    known.
    """

    number: int | None
    name: str
    type_oid: int
    typmod: int
    type_name: str = ""
    missing: str | None = None
    has_missing: bool = False
    has_default: bool = False
    not_null: bool = True


@dataclass(frozen=True, slots=True)
class Layout:
    """A table as the catalog has it, for changes that a Relation message describes.

    `key` is its primary key. `files` differs once all rows were written anew, as by a change of a type. `others` are the
    numbers of columns that it has but does not send. A layout that is made from the message alone knows none of the three.
    """

    oid: int
    columns: tuple[LayoutColumn, ...]
    key: tuple[str, ...] | None = None
    files: str | None = None
    others: tuple[int, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the catalog has told it."""
        return self.files is not None

    def describes(self, relation: Relation) -> bool:
        """Whether a table looks like this in a Relation message."""
        told = [(column.name, column.type_oid, column.typmod) for column in relation.columns]
        return self.oid == relation.oid and told == [(one.name, one.type_oid, one.typmod) for one in self.columns]


@dataclass(frozen=True, slots=True)
class Frame:
    """A run of changes in commit order, with what it takes to decode and to name them.

    `own_types` are the types of the user's own that its tables have. The frames of a lane come in order. Without `key_lane`
    a batch's changes to a table are all in this lane; with it, (k, n), only those whose key falls into the k-th of n lanes.
    `layouts` are those of its tables, as they are described, that the catalog could still tell when the frame was made.
    """

    lane: int
    key_lane: tuple[int, int] | None
    batch: Batch
    own_types: tuple[PgType, ...]
    lineage: Lineage
    layouts: tuple[tuple[Relation, Layout], ...] = ()

    @property
    def types(self) -> Types:
        return _extended(self.own_types)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a table as a snapshot saw them, in no order: a part of one of the pieces that the table is read in.

    `rows` has a column of text for each of the relation's, as the server writes values in the stream. Pieces are numbered
    within their attempt, and a piece may take several chunks; `first_row` is how many of its rows came before. `until` is
    where the WAL ended right after the snapshot was taken, at `read_at`.
    """

    attempt: str
    piece: int
    first_row: int
    relation: Relation
    rows: pa.RecordBatch
    own_types: tuple[PgType, ...]
    lineage: Lineage
    until: Lsn
    read_at: datetime

    @property
    def types(self) -> Types:
        return _extended(self.own_types)


def pack(frame: Frame | Chunk) -> bytes:
    return pickle.dumps(frame, pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> Frame | Chunk:
    frame = pickle.loads(data)
    if not isinstance(frame, Frame | Chunk):
        raise TypeError(f"a frame was expected, not {type(frame).__name__}")
    return frame


# As many as a worker meets at a time; each keeps the converters that were compiled for it.
@lru_cache(maxsize=8)
def _extended(own_types: Sequence[PgType]) -> Types:
    return Types.builtin().extended(own_types) if own_types else Types.builtin()
