"""Batches of Creek frames written to the target, by Spark's tasks, and how far the consumer is after each."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.capture.tables import prepare_tables
from headwater.creek.consumer.mapping import TableMapping
from headwater.creek.consumer.statements import (
    SCHEMA,
    Place,
    advance_subscriptions,
    fail_subscription,
    list_subscriptions,
    save_stream,
)
from headwater.errors import SinkError, SinkFenced, SinkUnavailable
from headwater.model import Lsn, Position
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.migrate import Component, migrate
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.creek_apply.inputs import SET_BACK, CreekFrames, SubscriptionLedger
from headwater.spark.creek_apply.settings import ApplySettings
from headwater.spark.creek_apply.snapshot import load_sink
from headwater.spark.frame import unpack
from headwater.spark.letters import OpenLetter, list_open, prepare_letters
from headwater.spark.sinks.postgres.lane import LaneWriter
from headwater.spark.sinks.postgres.positions import hold
from headwater.spark.sinks.postgres.session import Address, Session, kept_session, patiently
from headwater.spark.sinks.postgres.statements import take_epoch
from headwater.spark.sinks.postgres.task import OUTCOME, outcome, total
from headwater.spark.sinks.sink import Span, Written
from headwater.spark.sources.creek.frames import CreekFrame
from headwater.spark.sources.creek.offset import Mark, Offset, Step

_log = logging.getLogger(__name__)


def prepare_target(url: str) -> None:
    """Make the consumer's own tables and functions, and those of sinks and letters, in the target."""
    prepare_letters(url)
    prepare_tables(url)
    with translated(url), closing(connect_sync(url)) as connection:
        migrate(connection, Component.of("headwater.spark.sinks.postgres"))
        prepare_consumer(connection)


def prepare_consumer(connection: Connection) -> None:
    """Make the consumer's own tables and functions."""
    migrate(connection, Component.of("headwater.creek.consumer", schema=SCHEMA))


@dataclass(frozen=True, slots=True)
class ApplyTask:
    """Writes one partition of a batch, of all tables or of one; `is_alone` if there is no other."""

    address: Address
    epoch: int
    span: Span
    open_letters: tuple[OpenLetter, ...]
    is_alone: bool
    only: TableMapping | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = (unpack(packed.as_py()) for batch in batches for packed in batch.column("frame"))
        frames = [frame for frame in found if isinstance(frame, CreekFrame) and self.only in (None, frame.table)]
        if frames:
            notes: list[str] = []
            yield outcome(lambda: self._write(frames, notes), notes, is_load=False)

    def _write(self, frames: Sequence[CreekFrame], notes: list[str]) -> Written:
        for failure in (frame.failure for frame in frames if frame.failure is not None):
            raise SinkError(self.address.sink, failure)
        ledger = SubscriptionLedger(self.address, self.epoch)
        session = kept_session(self.address.url)
        writer = LaneWriter(self.address, session, self.epoch, self.is_alone, notes, ledger)
        return writer.write(CreekFrames(frames), self.span, self.open_letters)


class ApplySink:
    """Keeps the tables of the target equal to those of the streams, each message exactly once."""

    def __init__(self, settings: ApplySettings) -> None:
        self._settings, self._address = settings, settings.address()
        self._session = Session(settings.url)
        # Several streams may be delivered at a time, and share the session for what the driver does.
        self._lock = Lock()
        self._epoch = 0
        # The streams whose places this run has written down.
        self._known: set[tuple[str, str]] = set()
        # Whether there may be letters that wait; a write that made some sets it.
        self._may_have_letters = True

    @property
    def epoch(self) -> int:
        """Which run this is: as long as no later one has taken over, it may write."""
        return self._epoch

    def open(self) -> None:
        """Take over from an earlier run, which can write no more then."""

        def take() -> int:
            connection = self._session.connection
            with connection.transaction():
                return fetch_sync(connection, take_epoch(self._address.pipeline, self._address.sink))[0]

        self._epoch = patiently(self._address, self._session, take)
        self._known = set()
        self._may_have_letters = True

    def write(self, batch: DataFrame, end: Offset) -> Written:
        """Deliver a batch; it is durable on return, and so is where it ends."""
        step = end.step
        if step is None:
            return Written()
        written = Written()
        if step.changes:
            span = Span(_position(step.start), _position(step.end))
            letters = self._open_letters(end)
            try:
                written = self._written(batch, span, letters)
            except (SinkUnavailable, SinkFenced):
                raise
            except SinkError:
                written = self._write_each(batch, span, letters, step)
            self._may_have_letters |= written.letters > 0
        self._move_on(end)
        return written

    def close(self) -> None:
        self._session.close()

    def _written(
        self, batch: DataFrame, span: Span, letters: tuple[OpenLetter, ...], only: TableMapping | None = None
    ) -> Written:
        result = self._run(batch, ApplyTask(self._address, self._epoch, span, letters, is_alone=False, only=only))
        if result is None:
            # Lanes stood in each other's way: those that could not are done again, in the order of all their changes.
            alone = ApplyTask(self._address, self._epoch, span, letters, is_alone=True, only=only)
            result = self._run(batch.coalesce(1), alone)
        if result is None:
            raise SinkError(self._address.sink, "changes are in each other's way, though no other task has any; report it")
        return result

    def _write_each(self, batch: DataFrame, span: Span, letters: tuple[OpenLetter, ...], step: Step) -> Written:
        """Write one table after the other; one that the target does not take stays where it is, and the others go on."""
        written = Written()
        for table, generation in step.tables:
            if str(table) not in step.changes:
                continue
            try:
                written += self._written(batch, span, letters, table)
            except (SinkUnavailable, SinkFenced):
                raise
            except SinkError as error:
                _log.error("table %s: left where it is: %s", table.target, error.reason)
                self._fail(table, generation, error.reason)
        return written

    def _fail(self, table: TableMapping, generation: int, reason: str) -> None:
        def fail(connection: Connection) -> None:
            for one in fetch_sync(connection, list_subscriptions()):
                if one.mapping == table and one.generation == generation:
                    execute_sync(connection, fail_subscription(one, reason))

        self._within(fail)

    def _within(self, work: Callable[[Connection], object]) -> None:
        """Do something in a transaction of its own, in which no later run can take over; raises SinkFenced if one has."""

        def attempt() -> None:
            connection = self._session.connection
            with connection.transaction():
                hold(connection, self._address, self._epoch, [], [])
                work(connection)

        with self._lock:
            patiently(self._address, self._session, attempt)

    def _run(self, batch: DataFrame, task: ApplyTask) -> Written | None:
        outcomes = batch.mapInArrow(task, OUTCOME).collect()
        for note in (note for row in outcomes if row["notes"] for note in row["notes"].splitlines()):
            _log.warning("%s", note)
        return total(self._address.sink, outcomes)[0]

    def _move_on(self, end: Offset) -> None:
        """Say how far all tables of the step are, also those that had no messages in it."""
        step = end.step
        if step is None:
            return
        topics = {self._settings.subject(table.topic): str(table.topic) for table, _ in step.tables}
        begun = {topics[subject]: first for subject, first in step.end.begun.items() if subject in topics}
        place = Place(end.stream, end.identity, step.end.sequence, begun)
        start, here = step.start.sequence, (place.stream, place.identity)
        if step.is_behind:
            statement = advance_subscriptions(step.tables, start, place, is_settled=step.settles)
        else:
            statement = save_stream(start, place, is_known=here in self._known)

        def save(connection: Connection) -> None:
            if fetch_sync(connection, statement):
                raise SinkUnavailable(self._address.sink, SET_BACK.format(stream=place.stream))

        self._within(save)
        if not step.is_behind:
            self._known.add(here)

    def _open_letters(self, end: Offset) -> tuple[OpenLetter, ...]:
        """Letters that wait, also those of rows that came with a snapshot."""
        if not self._may_have_letters:
            return ()
        tables = [*(table for table, _ in end.tables), *(one.table for one in end.behind)]
        sinks = [self._address.sink, *(load_sink(table.target) for table in tables)]

        def look() -> tuple[OpenLetter, ...]:
            connection, pipeline = self._session.connection, self._address.pipeline
            return tuple(letter for sink in sinks for letter in list_open(connection, pipeline, sink))

        with self._lock:
            found = patiently(self._address, self._session, look)
            self._may_have_letters = bool(found)
        return found


def _position(mark: Mark) -> Position:
    return Position(Lsn(mark.sequence), 0)
