"""The changes of one table in their order, by columns, with all values as the server's text. Pure.

A log is what both ways into the sink lead to, frames and envelopes, and what is compacted and applied. Slices of it are
cheap: a part that the target refuses is halved until the culprit stands alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.model import Lsn, Position
from headwater.postgres.replication.columnar import Group, Places

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Mask: TypeAlias = npt.NDArray[np.bool_]
Arrays: TypeAlias = tuple[pa.Array, ...]

INSERT, UPDATE, DELETE, TRUNCATE = b"IUDT"


@dataclass(frozen=True, slots=True)
class Log:
    """Changes to one table, all with the same columns.

    `key` are the columns that tell its rows apart, as numbers in `columns`; without any, a row is found by all of them.
    `values` are the new rows, NULL where there is none; `unchanged` marks, by column, what was not sent of them. `old` are
    the columns of the key (without one, all columns) as they were, where `has_old`; `moved` marks the rows that got another
    key. `origins` says where each change came from: which of the inputs.
    """

    columns: tuple[str, ...]
    key: tuple[int, ...]
    tags: Bytes
    values: Arrays
    unchanged: Mapping[int, Mask]
    old: Arrays
    has_old: Mask
    moved: Mask
    places: Places
    origins: Ints

    def __len__(self) -> int:
        return len(self.tags)

    def __getitem__(self, part: slice) -> "Log":
        start, stop, _ = part.indices(len(self))
        size = max(0, stop - start)
        places = self.places
        return Log(
            self.columns,
            self.key,
            self.tags[part],
            tuple(array.slice(start, size) for array in self.values),
            {number: mask[part] for number, mask in self.unchanged.items() if mask[part].any()},
            tuple(array.slice(start, size) for array in self.old),
            self.has_old[part],
            self.moved[part],
            Places(places.commit_lsn[part], places.ordinal[part], places.xid[part], places.committed_at[part]),
            self.origins[part],
        )

    @property
    def key_values(self) -> Arrays:
        """The key that each change is about: the new one, or that of the row which goes."""
        is_new = pa.array((self.tags == INSERT) | (self.tags == UPDATE))
        return tuple(pc.if_else(is_new, self.values[number], old) for number, old in zip(self.key, self.old, strict=True))

    @property
    def kept(self) -> Mask:
        """The changes that leave a column as it is without saying what it is."""
        found = np.zeros(len(self), np.bool_)
        for mask in self.unchanged.values():
            found |= mask
        return found

    def position(self, index: int) -> Position:
        return Position(Lsn(int(self.places.commit_lsn[index])), int(self.places.ordinal[index]))


@dataclass(frozen=True, slots=True)
class Part:
    """Some changes of a group: those at `rows`, from the input `origin`."""

    group: Group
    rows: Ints
    origin: int


def gather(parts: Sequence[Part], columns: tuple[str, ...], key: tuple[int, ...]) -> Log:
    """The log of a table from parts with the same columns, in the order of positions."""
    places = _joined_places(parts)
    order = np.lexsort((places.ordinal, places.commit_lsn))
    in_order = bool((order == np.arange(len(order))).all())
    taken = None if in_order else pa.array(order)

    def collect(arrays: Iterable[pa.Array]) -> pa.Array:
        whole = pa.concat_arrays(list(arrays))
        return whole if taken is None else whole.take(taken)

    names = [columns[number] for number in key] if key else columns
    tags = np.concatenate([np.full(len(part.rows), ord(part.group.tag), np.uint8) for part in parts])[order]
    has_old = np.concatenate([np.full(len(part.rows), part.group.before is not None) for part in parts])[order]
    values = tuple(collect(_texts(part.group.after, part, name) for part in parts) for name in columns)
    old = tuple(collect(_texts(part.group.before, part, name) for part in parts) for name in names)
    origins = np.concatenate([np.full(len(part.rows), part.origin, np.int64) for part in parts])[order]
    moved = moved_rows(tags, has_old, [values[number] for number in key], old) if key else np.zeros(len(tags), np.bool_)
    unchanged = {number: _marked(parts, name)[order] for number, name in enumerate(columns)}
    unchanged = {number: mask for number, mask in unchanged.items() if mask.any()}
    return Log(columns, key, tags, values, unchanged, old, has_old, moved, places.at(order), origins)


def moved_rows(tags: Bytes, has_old: Mask, new: Sequence[pa.Array], old: Sequence[pa.Array]) -> Mask:
    """The updates that changed a column of the key."""
    candidates = np.flatnonzero((tags == UPDATE) & has_old)
    moved = np.zeros(len(tags), np.bool_)
    if len(candidates):
        index = pa.array(candidates)
        for after, before in zip(new, old, strict=True):
            differs = pc.not_equal(pc.fill_null(after.take(index), ""), pc.fill_null(before.take(index), ""))
            moved[candidates] |= differs.to_numpy(zero_copy_only=False)
    return moved


def is_before(places: Places, position: Position) -> Mask:
    """Which changes come before a position."""
    is_earlier: Mask = places.commit_lsn < position.commit_lsn
    is_earlier |= (places.commit_lsn == position.commit_lsn) & (places.ordinal < position.ordinal)
    return is_earlier


def _texts(rows: pa.RecordBatch | None, part: Part, name: str) -> pa.Array:
    if rows is None or name not in rows.schema.names:
        return pa.nulls(len(part.rows), pa.string())
    column = rows.column(name)
    return column if len(part.rows) == len(column) else column.take(pa.array(part.rows))


def _marked(parts: Sequence[Part], name: str) -> Mask:
    return np.concatenate(
        [
            part.group.unchanged[name][part.rows] if name in part.group.unchanged else np.zeros(len(part.rows), np.bool_)
            for part in parts
        ]
    )


def _joined_places(parts: Sequence[Part]) -> Places:
    found = [part.group.places.at(part.rows) for part in parts]
    return Places(
        np.concatenate([places.commit_lsn for places in found]),
        np.concatenate([places.ordinal for places in found]),
        np.concatenate([places.xid for places in found]),
        np.concatenate([places.committed_at for places in found]),
    )
