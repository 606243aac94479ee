"""What Spark's tasks do: append the changes of a partition, each exactly once, and say in one row what became of them.

What is appended and how far that is are in one transaction. It holds the locks of the topic's partitions no longer than it
takes to insert rows that are ready.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from headwater.errors import SinkError, TopicError
from headwater.model import Lsn, Position
from headwater.postgres.connect import Connection
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.letters import post_letters
from headwater.spark.rules import MIB
from headwater.spark.sinks.nats.parts import Part
from headwater.spark.sinks.postgres.loading_statements import find_piece, save_piece
from headwater.spark.sinks.postgres.log import is_before
from headwater.spark.sinks.postgres.positions import check_origin, hold, timeline_before
from headwater.spark.sinks.postgres.session import Address, Session, kept_session, patiently
from headwater.spark.sinks.postgres.statements import LanePosition, Reached, Table, save_positions
from headwater.spark.sinks.postgres.task import outcome
from headwater.spark.sinks.sink import Written
from headwater.spark.sinks.topic.messages import Mask, frames_of, outgoing
from headwater.spark.sinks.topic.work import WHOLE, Work, Works
from headwater.topics import Topic, find_sync
from headwater.topics.frame import Framed
from headwater.topics.statements import append_held, hold_partitions, ring

# What one statement carries.
_CALL_BYTES: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class AppendTask:
    """Appends one partition of a batch: a lane, in its order."""

    address: Address
    topic: str
    epoch: int
    works: Works

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield outcome(lambda: self._write(batches), [], is_load=False)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Written:
        context, session = TaskContext.get(), kept_session(self.address.url)
        works = self.works.of(batches, context.partitionId() if context else 0)
        return sum((append(self.address, session, self.topic, self.epoch, work) for work in works), Written())


def append(address: Address, session: Session, topic: str, epoch: int, work: Work) -> Written:
    """Append what is not in the topic yet; raises SinkFenced, SinkUnavailable or SinkError, with nothing appended."""

    def attempt() -> Written:
        connection = session.connection
        try:
            with connection.transaction():
                return _Attempt(connection, address, find_sync(connection, topic), work).append(epoch)
        except TopicError as exc:
            raise SinkError(address.sink, str(exc)) from exc

    return patiently(address, session, attempt)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One transaction."""

    connection: Connection
    address: Address
    topic: Topic
    work: Work

    def append(self, epoch: int) -> Written:
        work, parts = self.work, self.work.parts
        positions = hold(self.connection, self.address, epoch, work.locks, list({_table(part) for part in parts}))
        check_origin(self.address, positions, [work.lineage])
        if self._is_loaded:
            return Written(skipped=work.rows + len(work.letters))
        wanted = [~_is_applied(part, positions, work) for part in parts]
        given = [outgoing(part, mask, self.topic) for part, mask in zip(parts, wanted, strict=True)]
        letters = [*work.letters, *(letter for one in given for letter in one.letters)]
        # Before the commit: once that is done, nobody asks for these changes again.
        post_letters(self.address.state_url, letters)
        append_in_order(self.connection, self.topic, frames_of(given, self.topic))
        self._move_on(wanted)
        appended, left = sum(map(len, given)), sum(int(mask.sum()) for mask in wanted)
        return Written(appended, work.rows - left, len(letters))

    @property
    def _is_loaded(self) -> bool:
        piece = self.work.piece
        if piece is None:
            return False
        return bool(fetch_sync(self.connection, find_piece(self.address, piece.attempt, piece.number, piece.part)))

    def _move_on(self, wanted: Sequence[Mask]) -> None:
        work, address = self.work, self.address
        if work.piece is not None:
            piece = work.piece
            saved = save_piece(address, piece.attempt, piece.number, piece.part, piece.origin)
            execute_sync(self.connection, saved)
            return
        for part, mask in zip(work.parts, wanted, strict=True):
            if part.places is None or not mask.any():
                continue
            end = Position(Lsn(int(part.places.commit_lsn[-1])), int(part.places.ordinal[-1]) + 1)
            timeline = timeline_before(work.lineage, end.commit_lsn)
            reached = Reached(*_table(part), work.lane[1], work.lane[0], work.lineage.system_identifier, timeline)
            execute_sync(self.connection, save_positions(address.pipeline, address.sink, [reached], end))


def append_in_order(connection: Connection, topic: Topic, frames: Sequence[tuple[int, Framed]]) -> None:
    """Append frames in the transaction of the connection, which ends soon, and wake those who wait for the topic."""
    if not frames:
        return
    holding = hold_partitions(topic.id, (partition for partition, _ in frames))
    while not fetch_sync(connection, holding)[0]:
        pass
    sizes = np.cumsum([len(framed.frame) for _, framed in frames])
    for _, call in groupby(zip(frames, (sizes // _CALL_BYTES).tolist(), strict=True), key=itemgetter(1)):
        some = [one for one, _ in call]
        partitions, framed = [partition for partition, _ in some], [framed for _, framed in some]
        fetch_sync(connection, append_held(topic.id, partitions, framed))
    fetch_sync(connection, ring(topic.id))


def _table(part: Part) -> Table:
    schema, _, table = part.messages.table.partition(".")
    return schema, table


def _is_applied(part: Part, positions: Sequence[LanePosition], work: Work) -> Mask:
    """Which messages of a part are in the topic already."""
    none = np.zeros(len(part.messages), np.bool_)
    if part.places is None or work.piece is not None:
        return none
    lanes = [(*_table(part), *lane) for lane in (WHOLE, work.lane)]
    own = (one.position for one in positions if (one.schema, one.table, one.lane, one.lanes) in lanes)
    reached = max(own, default=None)
    return none if reached is None else is_before(part.places, reached)
