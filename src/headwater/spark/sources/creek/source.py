"""The source `headwater.creek`: tables of a Creek stream on NATS JetStream as a stream of Spark's.

Spark keeps one planner process per query; the stream is read there, and ranges of it are cut there into partitions. Tasks
get the messages as they were published and decode them. The names of the methods are Spark's.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater import failpoints
from headwater.creek.consumer.mapping import TableMapping
from headwater.errors import BrokerUnavailable, MessageError, NoSchema, SettingsError
from headwater.model import Lineage
from headwater.spark.frame import pack
from headwater.spark.rules import MIB
from headwater.spark.shape import ENVELOPE, WIRE, Shape
from headwater.spark.sources.creek.following import FixedTables, Following, Subscriptions
from headwater.spark.sources.creek.frames import CreekFrame, Run, frames_of
from headwater.spark.sources.creek.log import MessageLog
from headwater.spark.sources.creek.messages import Messages
from headwater.spark.sources.creek.offset import Behind, Generations, Mark, Offset, Step
from headwater.spark.sources.creek.options import Options, parse_options
from headwater.spark.sources.creek.relation import oid_of
from headwater.spark.sources.creek.schemas import Schemas
from headwater.spark.sources.creek.stream import StreamWatch
from headwater.spark.sources.envelope import to_envelopes
from headwater.spark.sources.protect import Protection

NAME: Final = "headwater.creek"

# Spark asks again at once when there was nothing; a pause in here saves it the asking, and is short enough for a stop.
_IDLE_SECONDS = 0.1
# How often to look whether tables were added, removed or loaded.
_REFRESH_SECONDS = 0.25
# What a task decodes at a time. Larger ones cost memory, and smaller ones time.
_PIECE_BYTES = 4 * MIB
# How many batches are kept at a time: the one that is delivered, and those that are next.
_AHEAD_BATCHES = 3
# The largest number that fits the column `ordinal`.
_ORDINAL_BITS = 0x7FFFFFFF

_WIRE_SCHEMA: Final = pa.schema([("lane", pa.int32()), ("changes", pa.int64()), ("frame", pa.binary())])


@dataclass(frozen=True)
class RunPartition(InputPartition):
    """Messages of some tables; those of a table that are in this partition are in order."""

    lane: int
    lineage: Lineage
    runs: tuple[Run, ...]


class CreekDataSource(DataSource):
    """Registers with a session as `headwater.creek`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = parse_options(self.options)
        if options.shape is Shape.TABLE:
            raise SettingsError("`headwater.creek` has the shapes envelope and wire, not table")
        return ENVELOPE if options.shape is Shape.ENVELOPE else WIRE

    def reader(self, schema: StructType) -> Any:
        raise SettingsError(
            "`headwater.creek` is a stream: use `readStream`, with `trigger(availableNow=True)` to end where it is now"
        )

    def streamReader(self, schema: StructType) -> "CreekReader":  # noqa: N802 - Spark's name
        return CreekReader(parse_options(self.options))


class CreekReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's reader. It is also pickled to tasks, where only `read` is called, so it opens nothing before it must."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._watched: StreamWatch | None = None
        self._followed: Following | None = None
        self._log: MessageLog | None = None
        self._catching_up: MessageLog | None = None
        self._schemas: Schemas | None = None
        self._until: int | None = None
        self._refresh_at = 0.0
        self._was_behind = False

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._following.initial(self._watch.info()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        return ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` is the end of the last one that Spark has committed."""
        offset = self._refreshed(Offset.from_json(start))
        following = self._next(offset, limit)
        return start if following is None else following.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Everything that is in the stream by now is to be delivered, and then the query ends."""
        self._until = self._watch.info().last_seq

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The messages of a range by lane; after a restart this is called before anything else."""
        failpoints.hit("source.partitions")
        last = Offset.from_json(end)
        step = last.step
        if step is None or start == end or not step.tables:
            return []
        log = self._log_of(step, last)
        log.fill_to(step.end.sequence)
        messages = log.between(step.start, step.end)
        runs = self._runs(messages, step, log.subjects)
        lineage = Lineage(f"{last.stream}-{last.identity}", 1, (), last.stream, "creek")
        if self._options.shape is Shape.WIRE:
            return _by_lane(runs, last.lanes, lineage)
        return [RunPartition(number, lineage, (piece,)) for number, piece in enumerate(_pieces(runs))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        mine = cast("RunPartition", partition)
        for run in mine.runs:
            for piece in _pieces([run]):
                for frame in frames_of(piece, mine.lane, mine.lineage):
                    yield from self._shaped(frame)

    def commit(self, end: dict[str, Any]) -> None:
        """The stream is not told how far it was read: it keeps what its limits say."""

    def stop(self) -> None:
        for one in (self._log, self._catching_up, self._watched, self._followed):
            if one is not None:
                one.close()
        self._log = self._catching_up = self._watched = self._followed = None

    def _shaped(self, frame: CreekFrame) -> Iterator[pa.RecordBatch]:
        if frame.unreadable and self._options.subscriptions_url is None:
            one = frame.unreadable[0]
            raise MessageError(
                f"message {one.sequence} of stream {self._options.stream!r}, of table {frame.table.topic}, cannot be read: "
                f"{one.reason}; start behind it, or leave the table out"
            )
        if self._options.shape is Shape.WIRE:
            yield pa.RecordBatch.from_arrays(
                [pa.array([frame.lane], pa.int32()), pa.array([frame.batch.changes]), pa.array([pack(frame)], pa.binary())],
                schema=_WIRE_SCHEMA,
            )
        elif len(frame.batch):
            yield _envelopes(frame)

    def _next(self, offset: Offset, limit: ReadLimit) -> Offset | None:
        """The offset at the end of the next batch, if there is anything to deliver or to log."""
        following = self._moved(offset, limit)
        # Turn and turn about, so that neither the stream nor the tables that are behind wait for long.
        if offset.behind and (following is None or not self._was_behind):
            caught_up = self._caught_up(offset, limit)
            self._was_behind = caught_up is not None
            return following if caught_up is None else caught_up
        self._was_behind = False
        return following

    def _moved(self, offset: Offset, limit: ReadLimit) -> Offset | None:
        """The offset at the end of a range of the stream."""
        wait = 0.0 if offset.behind else _IDLE_SECONDS
        if not offset.tables:
            # A reader without subjects would read all there are.
            time.sleep(wait)
            return None
        log = self._main(offset)
        self._fill(log, wait)
        end = log.bound(*_limits(limit, self._options), self._until)
        is_worth_it = (
            log.has_messages(offset.mark, end) or log.was_passed_over(offset.mark.sequence) or self._until is not None
        )
        if end.sequence <= offset.mark.sequence or not is_worth_it:
            return None
        step = Step(offset.mark, end, offset.tables, changes=self._counted(log, offset.mark, end, offset.tables))
        return replace(offset, mark=end, step=step)

    def _caught_up(self, offset: Offset, limit: ReadLimit) -> Offset | None:
        """The offset at the end of a range of the tables that are furthest behind."""
        least = min(one.mark.sequence for one in offset.behind)
        group = [one for one in offset.behind if one.mark.sequence == least]
        others = tuple(one for one in offset.behind if one.mark.sequence != least)
        tables: Generations = tuple((one.table, one.generation) for one in group)
        if least >= offset.mark.sequence:
            # It was loaded where the others are, or further on: what it has is left out when it comes.
            here = offset.mark
            begun = {s: first for one in group for s, first in one.mark.begun.items() if first <= here.sequence}
            return _settled(
                offset, others, Step(here, here, tables, is_behind=True, settles=True), Mark(here.sequence, begun)
            )
        start = Mark(least, {subject: first for one in group for subject, first in one.mark.begun.items()})
        ahead = min([offset.mark.sequence, *(one.mark.sequence for one in others)])
        log = self._catch_up_log(start, tables, offset)
        log.advance(start.sequence)
        log.fill(self._options.max_bytes, _IDLE_SECONDS)
        end = log.bound(*_limits(limit, self._options), ahead)
        if not log.has_messages(start, end) and end.sequence < ahead:
            log.pass_over()
            end = log.bound(*_limits(limit, self._options), ahead)
            if not log.has_messages(start, end) and end.sequence < ahead:
                return None
        changes = self._counted(log, start, end, tables)
        if end.sequence == offset.mark.sequence:
            return _settled(offset, others, Step(start, end, tables, is_behind=True, settles=True, changes=changes), end)
        moved = tuple(Behind(one.table, one.generation, self._own(end, one.table)) for one in group)
        step = Step(start, end, tables, is_behind=True, changes=changes)
        return replace(offset, behind=(*others, *moved), step=step)

    def _own(self, mark: Mark, table: TableMapping) -> Mark:
        """The mark with what concerns one table."""
        subject = self._options.subject(table)
        return Mark(mark.sequence, {subject: mark.begun[subject]} if subject in mark.begun else {})

    def _fill(self, log: MessageLog, wait_seconds: float) -> None:
        if self._until is None:
            log.fill(self._options.max_bytes, wait_seconds)
        else:
            log.fill_to(self._until, self._options.max_bytes)

    def _main(self, offset: Offset) -> MessageLog:
        """The log of the tables that are read as the stream goes on, from where they are."""
        subjects = self._subjects(offset.tables)
        if self._log is not None and self._log.subjects != subjects:
            self._log.close()
            self._log = None
        if self._log is None:
            self._log = self._new_log(offset.identity, subjects, offset.mark)
        self._log.advance(offset.mark.sequence)
        return self._log

    def _catch_up_log(self, start: Mark, tables: Generations, offset: Offset) -> MessageLog:
        subjects = self._subjects(tables)
        log = self._catching_up
        if log is None or log.subjects != subjects or not log.floor <= start.sequence <= log.end:
            if log is not None:
                log.close()
            self._catching_up = self._new_log(offset.identity, subjects, start)
        return cast("MessageLog", self._catching_up)

    def _new_log(self, identity: str, subjects: Mapping[str, int], start: Mark) -> MessageLog:
        options = self._options
        # While a batch is delivered, the next one is read.
        return MessageLog(options.access, self._watch, identity, subjects, start, _AHEAD_BATCHES * options.max_bytes)

    def _log_of(self, step: Step, end: Offset) -> MessageLog:
        """The log that holds a step, which is opened if it was logged by another process."""
        if step.is_behind:
            return self._catch_up_log(step.start, step.tables, end)
        if self._log is not None and self._log.floor > step.start.sequence:
            self._log.close()
            self._log = None
        if self._log is None or self._log.subjects != self._subjects(step.tables):
            return self._main(replace(end, mark=step.start, tables=step.tables))
        return self._log

    def _subjects(self, tables: Generations) -> dict[str, int]:
        """The subjects with a number each; several tables may come from one."""
        return {subject: number for number, subject in enumerate(dict.fromkeys(self._options.subject(t) for t, _ in tables))}

    def _counted(self, log: MessageLog, start: Mark, end: Mark, tables: Generations) -> dict[str, int]:
        counts = log.counts(start, end)
        found = ((str(table), counts.get(log.subjects[self._options.subject(table)], 0)) for table, _ in tables)
        return {name: count for name, count in found if count}

    def _runs(self, messages: Messages, step: Step, subjects: Mapping[str, int]) -> list[Run]:
        found = []
        self._schemas = self._schemas or Schemas(self._options.access)
        for table, generation in step.tables:
            mine = messages.of_subject(subjects[self._options.subject(table)])
            if not len(mine):
                continue
            names = self._options.names(table.topic.database)
            fingerprints = [one.tobytes() for one in np.unique(mine.fingerprints)]
            schemas, failure = {}, None
            try:
                schemas = self._schemas.of(names, table.topic, filter(any, fingerprints))
            except NoSchema as error:
                if self._options.subscriptions_url is None:
                    raise BrokerUnavailable(str(error)) from error
                # The consumer leaves this table where it is, and goes on with the others.
                failure = str(error)
            found.append(Run(table, generation, step.start, self._own(step.end, table), mine, schemas, failure))
        return found

    def _refreshed(self, offset: Offset) -> Offset:
        if time.monotonic() < self._refresh_at:
            return offset
        self._refresh_at = time.monotonic() + _REFRESH_SECONDS
        return self._following.refreshed(offset)

    @property
    def _watch(self) -> StreamWatch:
        self._watched = self._watched or StreamWatch(self._options.access, self._options.stream)
        return self._watched

    @property
    def _following(self) -> Following:
        if self._followed is None:
            url = self._options.subscriptions_url
            self._followed = FixedTables(self._options) if url is None else Subscriptions(self._options, url)
        return self._followed


def _limits(limit: ReadLimit, options: Options) -> tuple[int, int | None]:
    max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
    return (limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes), max_rows


def _settled(offset: Offset, others: tuple[Behind, ...], step: Step, mark: Mark) -> Offset:
    """Tables that have come to where the others are go on with them."""
    merged = Mark(offset.mark.sequence, {**offset.mark.begun, **mark.begun})
    tables = tuple(sorted((*offset.tables, *step.tables)))
    return replace(offset, mark=merged, tables=tables, behind=others, step=step)


def _by_lane(runs: Sequence[Run], lanes: int, lineage: Lineage) -> list[InputPartition]:
    """All of a table in one lane, whatever else is there."""
    found: dict[int, list[Run]] = {}
    for run in runs:
        found.setdefault(oid_of(run.table.target) // 2 % lanes, []).append(run)
    return [RunPartition(lane, lineage, tuple(mine)) for lane, mine in sorted(found.items())]


def _pieces(runs: Sequence[Run]) -> Iterator[Run]:
    """The runs in parts that are worked on at a time."""
    for run in runs:
        messages, start = run.messages, 0
        last = int(messages.sequences[-1])
        while start < last:
            left = messages.between(start, last)
            end = int(left.sequences[max(1, left.within(_PIECE_BYTES, None)) - 1])
            yield replace(run, messages=left.between(start, end))
            start = end


def _envelopes(frame: CreekFrame) -> pa.RecordBatch:
    """The changes with their commit positions at the source; the ordinal keeps the order that they have in the stream."""
    rows = to_envelopes(frame.batch, frame.types, Protection())
    sequences = rows.column("commit_lsn").to_numpy()
    places = {"commit_lsn": pa.array(frame.lsns), "ordinal": pa.array(sequences & _ORDINAL_BITS, pa.int32())}
    return pa.RecordBatch.from_arrays(
        [places.get(name, rows.column(name)) for name in rows.schema.names], schema=rows.schema
    )
