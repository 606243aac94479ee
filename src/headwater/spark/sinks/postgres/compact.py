"""What a run of changes comes to: for each key the last state, so that each row is written once. Pure.

A row whose key changed counts as one that went and one that came. A column that an update left alone has the value of an
earlier change of the same key in the run, or, if there is none, stays as it is in the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.spark.sinks.postgres.log import DELETE, INSERT, TRUNCATE, UPDATE, Arrays, Ints, Log, Mask


class Irregular(Exception):
    """An update of a row that is gone: only the changes one by one tell what becomes of it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to write, by columns, and the number of the change in the log that left each so.

    `kept` has for each row the columns, counted from 1, that stay as they are in the target; None when there are no such.
    """

    columns: Arrays
    changes: Ints
    kept: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.changes)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What to do, in this order: truncate, delete by `deleted` (the key, or without one all columns), write the rest.

    `fresh` rows were inserted in this run, so that the target cannot have them; `upserted` ones it may have.
    """

    truncate: bool
    deleted: Rows
    upserted: Rows
    fresh: Rows


def barriers(log: Log) -> Ints:
    """The changes to apply by themselves: a row gets another key, and keeps a column that was not sent."""
    return np.flatnonzero(log.moved & log.kept) if log.moved.any() else np.empty(0, np.int64)


def compact(log: Log) -> Compacted:
    """A log without barriers, compacted. Raises Irregular when the changes do not follow from each other."""
    truncates = np.flatnonzero(log.tags == TRUNCATE)
    start = int(truncates[-1]) + 1 if len(truncates) else 0
    rest = log[start:]
    deleted, upserted, fresh = _by_key(rest, start) if log.key else _by_row(rest, start)
    return Compacted(bool(len(truncates)), deleted, upserted, fresh)


def _by_key(log: Log, offset: int) -> tuple[Rows, Rows, Rows]:
    events, ids, keys = _events(log)
    count = int(ids.max()) + 1 if len(ids) else 0
    first, last = np.zeros(count, np.int64), np.zeros(count, np.int64)
    # Of several values for one place numpy keeps the one that comes last.
    first[ids[::-1]] = np.arange(len(ids))[::-1]
    last[ids] = np.arange(len(ids))
    change, goes = events >> 1, (events & 1 == 0) | (log.tags[events >> 1] == DELETE)
    gone, stays = last[goes[last]], last[~goes[last]]
    is_fresh = ~goes & ((log.tags == INSERT) | log.moved)[change]
    came = is_fresh[first[~goes[last]]]
    deleted = Rows(tuple(key.take(pa.array(gone)) for key in keys), change[gone] + offset)
    sources = _carried(log, change, ids, goes) if log.unchanged else {}
    return deleted, _rows(log, stays[~came], change, sources, offset), _rows(log, stays[came], change, sources, offset)


def _events(log: Log) -> tuple[Ints, Ints, Arrays]:
    """What happens to keys, in order: as twice the number of the change, and one more unless a row leaves its key.

    Beside it which key it is, as a number, and the keys themselves.
    """
    events, keys = np.arange(len(log)) * 2 + 1, log.key_values
    left = np.flatnonzero(log.moved)
    if len(left):
        index = pa.array(left)
        keys = tuple(pa.concat_arrays([key, old.take(index)]) for key, old in zip(keys, log.old, strict=True))
        events = np.concatenate([events, left * 2])
        order = np.argsort(events)
        events, keys = events[order], tuple(key.take(pa.array(order)) for key in keys)
    return events, numbered(keys), keys


def numbered(columns: Sequence[pa.Array]) -> Ints:
    """A number for each row, the same for rows that are equal in all columns, NULL being equal to NULL."""
    numbers: Ints | None = None
    for column in columns:
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        part = encoded.indices.to_numpy().astype(np.int64)
        if numbers is not None:
            joined = pa.array(numbers * len(encoded.dictionary) + part)
            part = joined.dictionary_encode().indices.to_numpy().astype(np.int64)
        numbers = part
    return np.empty(0, np.int64) if numbers is None else numbers


def _carried(log: Log, change: Ints, ids: Ints, goes: Mask) -> dict[int, Ints]:
    """For each column that was not always sent, the change that has the value after each event; -1 when none has."""
    order = np.argsort(ids, kind="stable")
    begins = np.flatnonzero(np.diff(ids[order], prepend=-1))
    place, start = np.arange(len(order)), np.zeros(len(order), np.int64)
    start[begins] = begins
    start = np.maximum.accumulate(start)
    found: dict[int, Ints] = {}
    for number, mask in log.unchanged.items():
        is_open = mask[change[order]] & ~goes[order]
        known = np.maximum.accumulate(np.where(is_open, -1, place))
        has_value = known >= start
        if (goes[order][np.maximum(known, 0)] & has_value & is_open).any():
            raise Irregular
        source = np.empty(len(order), np.int64)
        source[order] = np.where(has_value, change[order][np.maximum(known, 0)], -1)
        found[number] = source
    return found


def _rows(log: Log, at: Ints, change: Ints, sources: dict[int, Ints], offset: int) -> Rows:
    """The rows as they are after the events `at`."""
    plain = pa.array(change[at])
    columns, kept = [], {}
    for number, column in enumerate(log.values):
        if number not in sources:
            columns.append(column.take(plain))
            continue
        source = sources[number][at]
        columns.append(column.take(pa.array(source, mask=source < 0)))
        if (source < 0).any():
            kept[number] = source < 0
    return Rows(tuple(columns), change[at] + offset, _kept(kept, len(at)))


def _kept(masks: dict[int, Mask], count: int) -> pa.Array | None:
    """The marked columns of each row as an array's text, NULL for none."""
    if not masks:
        return None
    patterns, which = np.unique(np.stack(list(masks.values())), axis=1, return_inverse=True)
    numbers = list(masks)
    texts = [",".join(str(numbers[i] + 1) for i in np.flatnonzero(pattern)) for pattern in patterns.T]
    return pa.array([f"{{{text}}}" if text else None for text in texts], pa.string()).take(pa.array(which.ravel()))


def _by_row(log: Log, offset: int) -> tuple[Rows, Rows, Rows]:
    """Rows without a key: how many more, or fewer, there are of those that are equal in all columns."""
    came = np.flatnonzero((log.tags == INSERT) | (log.tags == UPDATE))
    left = np.flatnonzero((log.tags == DELETE) | ((log.tags == UPDATE) & log.has_old))
    both = tuple(
        pa.concat_arrays([new.take(pa.array(came)), old.take(pa.array(left))])
        for new, old in zip(log.values, log.old, strict=True)
    )
    surplus = _surplus(numbered(both), len(came)) if len(left) else np.ones(len(came), np.bool_)
    change = np.concatenate([came, left])
    more, fewer = np.flatnonzero(surplus[: len(came)]), len(came) + np.flatnonzero(surplus[len(came) :])
    none = Rows(tuple(column.slice(0, 0) for column in both), np.empty(0, np.int64))
    return _picked(both, change, fewer, offset), none, _picked(both, change, more, offset)


def _picked(columns: Arrays, change: Ints, at: Ints, offset: int) -> Rows:
    return Rows(tuple(column.take(pa.array(at)) for column in columns), change[at] + offset)


def _surplus(ids: Ints, came: int) -> Mask:
    """Which rows are left when each that left is set off against an equal one that came; the last of those stay."""
    count = int(ids.max()) + 1
    pairs = np.minimum(np.bincount(ids[:came], minlength=count), np.bincount(ids[came:], minlength=count))
    return np.concatenate([_rank(ids[:came], count) >= pairs[ids[:came]], _rank(ids[came:], count) >= pairs[ids[came:]]])


def _rank(ids: Ints, count: int) -> Ints:
    """The how-manieth of its kind each is, from 0."""
    order = np.argsort(ids, kind="stable")
    sizes = np.bincount(ids, minlength=count)
    rank = np.empty(len(ids), np.int64)
    rank[order] = np.arange(len(ids)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank
