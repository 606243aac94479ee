"""Snapshots of tables loaded into the target, and joined exactly with the changes that follow.

A snapshot is a topic of its own: a header, the rows, and an end. Spark's tasks read ranges of it and load their rows aside;
when all are there they take the place of what the table held, or are merged into it, in one transaction with the place in
the WAL stream from which the changes of the table go on, and with what says which of these the rows hold already.

Why nothing is missed and nothing comes twice: the end s0 of the WAL stream is noted before the snapshot is asked for. Every
message up to s0 is of a transaction that had committed by then. The producer takes its snapshot S after the request, behind
a fence that waits for every transaction which was under way, also for one that is in the WAL and still invisible to others:
so S sees all of these, and they need not be read. Messages behind s0 may be of transactions that S sees, too: S and the
position L that the WAL had after it tell which, and these are skipped one by one. What S does not see comes behind s0, since
it was not committed when S was taken.
"""

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.reader import StreamReader
from headwater.creek.client.headers import ROWS, SNAPSHOT, UNTIL, find_header
from headwater.creek.consumer import statements
from headwater.creek.consumer.mapping import TableMapping, Target
from headwater.creek.consumer.mapping import Topic as Source
from headwater.creek.consumer.statements import Join, Loaded, Place
from headwater.creek.decode.forms import TEXT
from headwater.creek.decode.rows import list_reader
from headwater.creek.decode.shape import Schema
from headwater.creek.decode.wal import whole
from headwater.creek.framing import FIRST_BYTES, Reassembly
from headwater.creek.messages import EOF, SnapshotHeader, SnapshotRequest
from headwater.creek.names import Kind, Names, parse_subject
from headwater.creek.requests import ERROR, ERROR_HEADER
from headwater.errors import BrokerUnavailable, PositionError, SettingsError, SinkError, SnapshotFailed
from headwater.model import Lineage, Lsn, Position, Snapshot, SnapshotRead
from headwater.postgres.replication.messages import Relation
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.creek_apply.settings import PIPELINE, SINK, ApplySettings, Mode
from headwater.spark.creek_apply.tables import bring_table
from headwater.spark.failure import translate
from headwater.spark.frame import Chunk
from headwater.spark.letters import list_open, supersede
from headwater.spark.sinks.postgres import loading_statements
from headwater.spark.sinks.postgres.load import PieceLoader, chunk_pieces
from headwater.spark.sinks.postgres.session import Address, Session, kept_session, patiently
from headwater.spark.sinks.postgres.statements import take_epoch
from headwater.spark.sinks.postgres.swap import TableSwapper
from headwater.spark.sinks.postgres.task import OUTCOME, outcome, total
from headwater.spark.sinks.sink import Loading, Written
from headwater.spark.sources.creek.columns import Odd, Walk, read_record
from headwater.spark.sources.creek.messages import Ints
from headwater.spark.sources.creek.relation import relation_of
from headwater.spark.sources.creek.stream import StreamWatch, identity_of

_log = logging.getLogger(__name__)

# Packets of one task: enough to be worth a transaction, few enough that a failed one costs little.
_PIECE_PACKETS = 50_000
_READ_MESSAGES = 8192
_LOOK_SECONDS = 0.2
# How far back the changes of a snapshot may lie that was taken before: longer than clocks differ, and than it takes to begin
# one. What comes too early is skipped exactly.
_BACK = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot: its header, where it begins in its stream, and which changes its rows hold."""

    header: SnapshotHeader
    first: int
    stored_at: datetime
    join: Join


@dataclass(frozen=True, slots=True)
class Topic:
    """A snapshot's subject, and the stream that it is in."""

    stream: str
    subject: str


class SnapshotLoader:
    """Loads snapshots, one at a time into a target."""

    def __init__(self, spark: SparkSession, settings: ApplySettings) -> None:
        self._spark, self._settings = spark, settings

    def take(self, mapping: TableMapping, mode: Mode) -> Written:
        """Have a producer take a snapshot, and load it; raises SnapshotFailed if there is none."""
        place = self._end_of_stream(mapping)
        names, topic = self._settings.names(mapping.topic.database), mapping.topic
        request = SnapshotRequest(topic.database, topic.schema, topic.table)
        subject = ask_for_snapshot(replace(self._settings.access, timeout=self._settings.answer), names, request)
        return self._load(mapping, mode, Topic(names.stream(Kind.SNAPSHOT), subject), place)

    def apply(self, mapping: TableMapping, mode: Mode, subject: str) -> Written:
        """Load a snapshot that was taken before, if the changes since then are still there."""
        names = self._settings.names(mapping.topic.database)
        try:
            parts = parse_subject(subject, names.root, names.generation)
        except ValueError as exc:
            raise SettingsError(
                f"{subject!r} is no topic of a snapshot; `list-snapshots` shows those that there are"
            ) from exc
        if Source(parts.database, parts.schema, parts.table) != mapping.topic:
            raise SettingsError(f"{subject!r} is a snapshot of another table than {mapping.topic}")
        return self._load(mapping, mode, Topic(names.stream(Kind.SNAPSHOT), subject), None)

    def _end_of_stream(self, mapping: TableMapping) -> Place:
        stream = self._settings.names(mapping.topic.database).stream(Kind.WAL)
        with closing(StreamWatch(self._settings.access, stream)) as watch:
            info = watch.info()
        return Place(stream, identity_of(info), info.last_seq)

    def _load(self, mapping: TableMapping, mode: Mode, topic: Topic, place: Place | None) -> Written:
        with closing(StreamWatch(self._settings.access, topic.stream)) as watch:
            taken = self._header(watch, topic)
            place = place or self._place_before(mapping, taken)
            with closing(Session(self._settings.url)) as session:
                load = _Load(self._spark, self._settings, session, mapping, mode, topic, taken, place)
                return load.run(watch)

    def _header(self, watch: StreamWatch, topic: Topic) -> Taken:
        """The first message of a snapshot, which comes after the topic was told."""
        found = _awaited(lambda: watch.message({"next_by_subj": topic.subject, "seq": 1}), self._settings.answer)
        if found is None:
            raise SnapshotFailed(f"snapshot {topic.subject!r} has no messages; `list-snapshots` shows those that there are")
        body = Reassembly().add(topic.subject, found["data"])
        try:
            header = SnapshotHeader.from_json(body or b"")
        except ValueError as exc:
            raise SnapshotFailed(f"snapshot {topic.subject!r} does not begin with a header: {exc}") from exc
        snapshot, until = find_header(found["hdrs"], SNAPSHOT), find_header(found["hdrs"], UNTIL)
        join = Join(skip_lsn=header.lsn)
        if snapshot is not None and until is not None:
            join = Join(SnapshotRead(Snapshot.parse(snapshot), Lsn.parse(until)))
        return Taken(header, int(found["seq"]), datetime.fromisoformat(found["time"][:26].rstrip("Z") + "+00:00"), join)

    def _place_before(self, mapping: TableMapping, taken: Taken) -> Place:
        """A place in the WAL stream that lies before all changes which a snapshot of some time ago does not hold."""
        stream = self._settings.names(mapping.topic.database).stream(Kind.WAL)
        since = min(taken.stored_at, taken.header.at.astimezone(UTC)) - _BACK
        with closing(StreamWatch(self._settings.access, stream)) as watch:
            info = watch.info()
            first = max(1, info.first_seq)
            sequence = _sequence_at(watch, first, info.last_seq, since)
            # One that was made after the snapshot begins at 1 as well, and another one had what came before.
            if sequence == first > 1 or info.created > since + _BACK:
                raise PositionError(
                    f"stream {stream!r} begins at {info.first_seq}, and may have lost changes that came after the snapshot "
                    f"of {taken.header.at:%Y-%m-%d %H:%M}; take a new snapshot"
                )
        return Place(stream, identity_of(info), sequence - 1)


@dataclass(slots=True)
class _Load:
    """One snapshot on its way into a table."""

    spark: SparkSession
    settings: ApplySettings
    session: Session
    mapping: TableMapping
    mode: Mode
    topic: Topic
    taken: Taken
    place: Place

    def run(self, watch: StreamWatch) -> Written:
        address = self.settings.address(load_sink(self.mapping.target))
        schema = Schema(self.taken.header.schema)
        relation = relation_of(schema, self.mapping.target)
        if self.mode is Mode.UPSERT and not any(column.key for column in relation.columns):
            raise SinkError(
                address.sink,
                f"table {self.mapping.topic} has no key by which rows could be found that are there already; use mode clean",
            )
        loading = Loading(
            attempt=uuid.uuid4().hex,
            tables=(self.mapping.target.name,),
            first=0,
            last=0,
            is_complete=False,
            position=Position(Lsn(self.place.sequence + 1), 0),
        )
        epoch = patiently(address, self.session, lambda: self._begin(address, loading, relation))
        _log.info("table %s: loading snapshot %s", self.mapping.target, self.topic.subject)
        written, rows = self._load_rounds(watch, address, epoch, loading)
        swapper = TableSwapper(address, self.session, epoch, self._lineage, keeps_others=self.mode is Mode.UPSERT)
        written += patiently(address, self.session, lambda: self._finish(swapper, replace(loading, is_complete=True)))
        _log.info("table %s: loaded, %d rows", self.mapping.target, rows)
        return written

    def _begin(self, address: Address, loading: Loading, relation: Relation) -> int:
        """Make the table ready, let go of what an earlier load has left, and take over from one that may be under way."""
        connection = self.session.connection
        with connection.transaction():
            epoch = fetch_sync(connection, take_epoch(address.pipeline, address.sink))[0]
            bring_table(self.settings, self.session, relation, self.place.sequence)
            for dead in fetch_sync(connection, loading_statements.list_attempts(address)):
                for load in fetch_sync(connection, loading_statements.list_loads(address, dead)):
                    if load.aside is not None:
                        execute_sync(connection, loading_statements.drop_aside(load.aside))
                execute_sync(connection, loading_statements.forget_attempt(address, dead))
            execute_sync(connection, loading_statements.begin_load(address, loading.attempt, loading.tables))
        return epoch

    def _load_rounds(self, watch: StreamWatch, address: Address, epoch: int, loading: Loading) -> tuple[Written, int]:
        """Load what is there, again and again until the end is; so a snapshot is loaded while it is written."""
        written, done, pieces = Written(), self.taken.first, 0
        deadline = time.monotonic() + self.settings.answer.total_seconds()
        end: _End | None = None
        while end is None:
            last = watch.last_of(self.topic.subject)
            end = self._end(watch, last)
            upto = last - 1 if end is not None else last
            if upto > done:
                ranges = [(start, min(start + _PIECE_PACKETS, upto)) for start in range(done, upto, _PIECE_PACKETS)]
                written += self._load_pieces(address, epoch, loading, ranges, pieces)
                done, pieces = upto, pieces + len(ranges)
                deadline = time.monotonic() + self.settings.answer.total_seconds()
            elif end is None and time.monotonic() > deadline:
                raise SnapshotFailed(
                    f"snapshot {self.topic.subject!r} breaks off: it has no end, and nothing came for "
                    f"{self.settings.answer.total_seconds():.0f} s; see whether its producer runs, and take another one"
                )
            elif end is None:
                time.sleep(_LOOK_SECONDS)
        rows = written.changes + written.letters
        if end.rows is not None and rows != end.rows:
            raise SnapshotFailed(
                f"snapshot {self.topic.subject!r} has {end.rows} rows, and {rows} of them were read; report it"
            )
        return written, rows

    def _end(self, watch: StreamWatch, last: int) -> "_End | None":
        """What the last message says, if it is the end; raises SnapshotFailed if it says that there will be none."""
        found = watch.message({"seq": last})
        body = b"" if found is None else found["data"][FIRST_BYTES:]
        if found is None or body not in (EOF, ERROR):
            return None
        reason = find_header(found["hdrs"], ERROR_HEADER)
        if body == ERROR and reason is not None:
            raise SnapshotFailed(f"snapshot {self.topic.subject!r} was broken off by its producer: {reason}")
        rows = find_header(found["hdrs"], ROWS)
        # A row may look like an end; Headwater's own ends say how many rows there were.
        if body != EOF or (rows is None and self.taken.join.read is not None):
            return None
        return _End(None if rows is None else int(rows))

    def _load_pieces(
        self, address: Address, epoch: int, loading: Loading, ranges: Sequence[tuple[int, int]], first: int
    ) -> Written:
        task = LoadTask(
            access=self.settings.access,
            topic=self.topic,
            address=address,
            epoch=epoch,
            loading=loading,
            mapping=self.mapping,
            header=self.taken.header,
            lineage=self._lineage,
            ranges=tuple(ranges),
            first=first,
        )
        numbers = self.spark.range(0, len(ranges), 1, len(ranges))
        try:
            outcomes = numbers.mapInArrow(task, OUTCOME).collect()
        except PySparkException as exc:
            raise translate(exc) from exc
        _, loaded = total(address.sink, outcomes)
        return loaded

    def _finish(self, swapper: TableSwapper, loading: Loading) -> Written:
        connection = self.session.connection
        header = self.taken.header
        with connection.transaction():
            # What could not be applied before is not missed any more.
            waiting = list_open(connection, PIPELINE, SINK)
            mine = self.mapping.target.name
            supersede(connection, [letter.id for letter in waiting if (letter.schema, letter.table) == mine])
            # Before anything is written to the table: whoever applies changes to it takes the same locks in this order.
            fetch_sync(connection, statements.lock_target(self.mapping))
            written = swapper.swap_within(loading)
            loaded = Loaded(self.mapping, self.place, header.lsn, header.at, self.taken.join)
            execute_sync(connection, statements.save_loaded(loaded))
        return written

    @property
    def _lineage(self) -> Lineage:
        return Lineage(f"{self.place.stream}-{self.place.identity}", 1, (), self.place.stream, "creek")


@dataclass(frozen=True, slots=True)
class _End:
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTask:
    """Loads some ranges of a snapshot aside: those whose numbers it gets."""

    access: NatsAccess
    topic: Topic
    address: Address
    epoch: int
    loading: Loading
    mapping: TableMapping
    header: SnapshotHeader
    lineage: Lineage
    ranges: tuple[tuple[int, int], ...]
    first: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield outcome(partial(self._load, number), [], is_load=True)

    def _load(self, number: int) -> Written:
        loader = PieceLoader(self.address, kept_session(self.address.url), self.epoch, self.loading)
        chunks = self._chunks(number)
        pieces = chunk_pieces(chunks, self.loading, self.address)
        return sum((loader.load(rows, piece) for piece, rows in pieces), Written())

    def _chunks(self, number: int) -> Iterator[Chunk]:
        schema = Schema(self.header.schema)
        relation = relation_of(schema, self.mapping.target)
        done = 0
        for data, bounds in self._data(*self.ranges[number]):
            columns = read_rows(data, bounds, schema)
            names = [column.name for column in relation.columns]
            rows = pa.RecordBatch.from_arrays(columns, names)
            yield Chunk(
                attempt=self.loading.attempt,
                piece=self.first + number,
                first_row=done,
                relation=relation,
                rows=rows,
                own_types=(),
                lineage=self.lineage,
                until=self.header.lsn,
                read_at=self.header.at,
            )
            done += rows.num_rows

    def _data(self, start: int, end: int) -> Iterator[tuple[bytes, Ints]]:
        """The rows whose first packets stand behind one sequence and up to another, some at a time."""
        assembly = Reassembly()
        with closing(StreamReader(self.access, self.topic.stream, [self.topic.subject], start + 1)) as reader:
            is_open, at = False, start
            while at < end or is_open:
                received = reader.read(_READ_MESSAGES, self.access.timeout.total_seconds())
                if not received:
                    raise BrokerUnavailable(f"snapshot {self.topic.subject!r} ends at {at}, and goes on to {end}")
                bodies = []
                for one in received:
                    is_first = one.payload[:2] == b"\0\0"
                    if one.sequence > end and (is_first or not is_open):
                        is_open, at = False, one.sequence
                        break
                    body = assembly.add(one.subject, one.payload)
                    at, is_open = one.sequence, body is None and (is_first or is_open)
                    if body is not None:
                        bodies.append(body)
                if bodies:
                    bounds = np.zeros(len(bodies) + 1, np.int64)
                    np.cumsum([len(body) for body in bodies], out=bounds[1:])
                    yield b"".join(bodies), bounds


def read_rows(data: bytes, bounds: Ints, schema: Schema) -> list[pa.StringArray]:
    """The rows of a snapshot by columns; raises MessageError for one that is none."""
    walk = Walk(data, bounds[:-1], bounds[1:])
    try:
        columns = read_record(walk, schema.after)
        walk.require_end()
    except Odd:
        read = list_reader(schema.after, TEXT)
        parts = (data[start:end] for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        rows = [whole(read, part, schema) for part in parts]
        return [pa.array([row[n] for row in rows], pa.string()) for n in range(len(schema.after.fields))]
    return columns


def ask_for_snapshot(access: NatsAccess, names: Names, request: SnapshotRequest) -> str:
    """The topic of a snapshot that a producer has begun; raises SnapshotFailed if it refuses."""
    subject = names.snapshot_requests[0]
    with closing(Link(access)) as link:
        answer = link.ask(subject, request.to_json())
    if answer is None:
        raise BrokerUnavailable(
            f"nobody answers requests for snapshots on {subject!r} at NATS {access.describe()}; start the producer of "
            f"database {request.database!r}"
        )
    reason = find_header(answer.headers, ERROR_HEADER)
    if reason is not None:
        table = f"{request.database}.{request.namespace}.{request.table}"
        raise SnapshotFailed(f"there is no snapshot of {table}, as its producer says: {reason}")
    topic = answer.payload.decode(errors="replace")
    try:
        parse_subject(topic, names.root, names.generation)
    except ValueError as exc:
        raise SnapshotFailed(f"what answers on {subject!r} is no producer of snapshots: {topic[:100]!r}") from exc
    return topic


def load_sink(target: Target) -> str:
    """Under which name a table is loaded: whoever loads must not stop those who apply changes."""
    return f"load {target}"


def _awaited(look: Any, patience: timedelta) -> dict[str, Any] | None:
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        found: dict[str, Any] | None = look()
        if found is not None or time.monotonic() > deadline:
            return found
        time.sleep(_LOOK_SECONDS)


def _sequence_at(watch: StreamWatch, first: int, last: int, moment: datetime) -> int:
    """The first message that was stored at a moment or later; one more than the last if none was."""
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        found = watch.message({"next_by_subj": ">", "seq": middle})
        if found is None:
            high = middle
        elif datetime.fromisoformat(found["time"][:26].rstrip("Z") + "+00:00") < moment:
            low = int(found["seq"]) + 1
        else:
            high = middle
    return low
