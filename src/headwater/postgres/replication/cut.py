"""Batches cut by position: where each message of a batch stands, and the part of a batch that lies in a range. Pure.

A bound is a position that nothing before it includes: (end of a transaction, 0) lies behind all of that transaction, and
(its commit LSN, n) behind its first n changes. So a range is cut at the same messages however the batches were made.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from headwater.errors import DecodeError
from headwater.model import Lsn, Position
from headwater.postgres.replication.batch import Batch, Bytes, changes_per_message, relations_in, tags_of
from headwater.postgres.replication.messages import Begin
from headwater.postgres.replication.pgoutput import expect

# Where the Commit message has the position behind its transaction.
_END_AT = 10


@dataclass(frozen=True, slots=True)
class Index:
    """Where each message of a batch stands, in the order of the stream, which is that of positions.

    `steps` is how many row changes a message stands for. A message that is no change has the ordinal of the next one.
    """

    batch: Batch
    tags: Bytes
    steps: npt.NDArray[np.int64]
    commit_lsn: npt.NDArray[np.int64]
    ordinal: npt.NDArray[np.int64]

    @classmethod
    def of(cls, batch: Batch) -> Self:
        tags = tags_of(batch.data, batch.bounds)
        steps = changes_per_message(batch.data, batch.bounds, tags, batch.xid_bytes)
        begins = np.flatnonzero(tags == ord("B"))
        transaction = np.cumsum(tags == ord("B"))
        counted = np.cumsum(steps) - steps
        lead = 0 if batch.begin is None else int(batch.begin.commit_lsn)
        commit_lsn = np.concatenate(([lead], big_endian(batch.data, batch.bounds[begins] + 1, 8)))
        base = np.concatenate(([-batch.first_ordinal], counted[begins]))
        ordinal = counted - base[transaction] if batch.ordinals is None else batch.ordinals
        return cls(batch, tags, steps, commit_lsn[transaction], ordinal)

    @property
    def start(self) -> Position:
        return self.position(0)

    @property
    def end(self) -> Position:
        """The bound behind the last message."""
        if self.batch.end is not None:
            return Position(self.batch.end, 0)
        return Position(Lsn(int(self.commit_lsn[-1])), int(self.ordinal[-1] + self.steps[-1]))

    def position(self, message: int) -> Position:
        return Position(Lsn(int(self.commit_lsn[message])), int(self.ordinal[message]))

    def message_at(self, bound: Position) -> int:
        """The first message that is not before the bound."""
        low, high = (
            np.searchsorted(self.commit_lsn, bound.commit_lsn),
            np.searchsorted(self.commit_lsn, bound.commit_lsn, "right"),
        )
        return int(low + np.searchsorted(self.ordinal[low:high], bound.ordinal))

    def bound_within(self, rows: int) -> Position:
        """The last bound that at most so many changes lie before: behind a transaction, or if none ends there, inside one.

        At least one change lies before it, so that there is always something to go on with.
        """
        counted = np.cumsum(self.steps)
        taken = max(int(np.searchsorted(counted, rows, "right")), int(np.searchsorted(counted, 1)) + 1)
        commits = np.flatnonzero(self.tags[:taken] == ord("C"))
        commits = commits[counted[commits] > 0]
        if len(commits):
            at = int(self.batch.bounds[commits[-1]]) + _END_AT
            return Position(Lsn(int.from_bytes(self.batch.data[at : at + 8])), 0)
        return self.position(taken) if taken < len(self.tags) else self.end

    def between(self, start: Position, end: Position) -> Batch | None:
        """The messages at or after `start` and before `end` as a batch; None when no change is among them."""
        first, last = self.message_at(start), self.message_at(end)
        changes = int(self.steps[first:last].sum())
        if not changes:
            return None
        if (first, last) == (0, len(self.tags)):
            return self.batch
        batch, bounds = self.batch, self.batch.bounds
        head = (batch.data[: bounds[first]], bounds[: first + 1], self.tags[:first])
        return replace(
            batch,
            data=batch.data[bounds[first] : bounds[last]],
            bounds=bounds[first : last + 1] - bounds[first],
            relations={**batch.relations, **relations_in(*head, batch.xid_bytes)},
            changes=changes,
            end=batch.end if last == len(self.tags) else None,
            begin=self._begin_of(first),
            first_ordinal=int(self.ordinal[first]),
            ordinals=None if batch.ordinals is None else batch.ordinals[first:last],
        )

    def _begin_of(self, message: int) -> Begin | None:
        """The Begin of the transaction that a message is inside of; None if it is a Begin itself."""
        if self.tags[message] == ord("B"):
            return None
        begins = np.flatnonzero(self.tags[:message] == ord("B"))
        return expect(Begin, self.batch.message(int(begins[-1]))) if len(begins) else self.batch.begin


def big_endian(data: bytes, at: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """The numbers of so many bytes, 4 or 8, at some places."""
    if not len(at):
        return np.zeros(0, np.int64)
    if int(at.max()) + size > len(data):
        raise DecodeError("the message ends too soon")
    # A view that has a number begin at every byte.
    everywhere = np.ndarray((len(data) - size + 1,), np.dtype(f">u{size}"), data, strides=(1,))
    return everywhere[at].astype(np.int64)


def joined(batches: Iterable[Batch], max_bytes: int) -> Iterator[Batch]:
    """The same messages in fewer batches, where neighbours are small; those of streamed transactions stay as they are."""
    waiting: list[Batch] = []
    known: dict[int, bytes] = {}
    for batch in batches:
        size = sum(len(each.data) for each in waiting) + len(batch.data)
        if waiting and (size > max_bytes or not _continues(waiting[0], batch, known)):
            yield _join(waiting)
            waiting, known = [], {}
        waiting.append(batch)
        known.update(batch.relations)
        known.update(relations_in(batch.data, batch.bounds, tags_of(batch.data, batch.bounds), batch.xid_bytes))
    if waiting:
        yield _join(waiting)


def _continues(first: Batch, batch: Batch, known: Mapping[int, bytes]) -> bool:
    """Whether a batch can stand behind others: with transactions of its own, and tables as they are known there."""
    is_plain = not (first.streamed or batch.streamed) and batch.begin is None and first.ordinals is batch.ordinals is None
    return is_plain and all(known.get(oid) == message for oid, message in batch.relations.items())


def _join(batches: Sequence[Batch]) -> Batch:
    first, last = batches[0], batches[-1]
    if first is last:
        return first
    starts = np.cumsum([0, *(len(batch.data) for batch in batches)])
    bounds = [batch.bounds[1:] + start for batch, start in zip(batches, starts[:-1], strict=True)]
    data = b"".join(batch.data for batch in batches)
    changes = sum(batch.changes for batch in batches)
    return replace(first, data=data, bounds=np.concatenate(([0], *bounds)), changes=changes, end=last.end)
