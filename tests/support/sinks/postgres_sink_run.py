"""What tests of the sink share: a run of it that writes in this process, as a task of Spark's does, and a look."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from psycopg import sql

from headwater.model import Lineage, Position
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.spark.frame import Frame
from headwater.spark.letters import LetterSummary, OpenLetter, find_letter, list_letters, list_open
from headwater.spark.letters.letter import State
from headwater.spark.settings import LaneRule, PostgresSinkSettings, SchemaChanges
from headwater.spark.shape import ENVELOPE
from headwater.spark.sinks import Written
from headwater.spark.sinks.postgres import PostgresSink, statements
from headwater.spark.sinks.postgres.envelope import Envelopes
from headwater.spark.sinks.postgres.lane import LaneWriter
from headwater.spark.sinks.postgres.load import PieceLoader, chunk_pieces
from headwater.spark.sinks.postgres.prepare import read_tables
from headwater.spark.sinks.postgres.session import Address, Session
from headwater.spark.sinks.postgres.swap import TableSwapper
from headwater.spark.sinks.postgres.wire import Frames
from headwater.spark.sources.lanes import split
from tests.conformance.sink_frames import Delivery, Reading, envelope_of

PIPELINE, SINK = "shop", "copy"
PATIENCE = timedelta(seconds=5)
LINEAGE = Lineage("7000000000000000001", 1, (), "shop", "hw")
# What a transform does to a row of the DataFrame `changes`.
Transform = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Applying:
    """A run of the sink; `session` is the connection that a worker would keep."""

    sink: PostgresSink
    address: Address
    epoch: int
    session: Session

    def write(self, delivery: Delivery, *, is_alone: bool = False) -> Written:
        """All frames in one task."""
        writer = LaneWriter(self.address, self.session, self.epoch, is_alone)
        return writer.write(Frames(delivery.frames), delivery.span, self.open_letters())

    def write_envelopes(self, delivery: Delivery, transform: Transform = dict) -> Written:
        """The same changes as they come out of a transform, in one task."""
        changes = [transform(dict(zip(ENVELOPE.fieldNames(), envelope_of(c), strict=True))) for c in delivery.changes]
        inputs = Envelopes(changes, delivery.frames[0].lineage, SINK)
        return LaneWriter(self.address, self.session, self.epoch, is_alone=True).write(
            inputs, delivery.span, self.open_letters()
        )

    def begin(self, reading: Reading) -> None:
        """What the driver does before the first pieces."""
        loading = reading.whole.span.loading
        assert loading is not None
        self._swapper(reading).begin(loading, read_tables(self.address.state_url, loading.tables), creates=True)

    def load(self, reading: Reading) -> Written:
        """All pieces, one task after the other."""
        loading = reading.whole.span.loading
        assert loading is not None
        loader = PieceLoader(self.address, self.session, self.epoch, loading)
        pieces = chunk_pieces(reading.chunks, loading, self.address)
        return sum((loader.load(rows, piece) for piece, rows in pieces), Written())

    def complete(self, reading: Reading) -> Written:
        loading = reading.end.span.loading
        assert loading is not None
        return self._swapper(reading).swap(loading)

    def take(self, reading: Reading) -> Written:
        """All of an attempt."""
        self.begin(reading)
        return self.load(reading) + self.complete(reading)

    def _swapper(self, reading: Reading) -> TableSwapper:
        lineage = next((chunk.lineage for chunk in reading.chunks), LINEAGE)
        return TableSwapper(self.address, self.session, self.epoch, lineage)

    def replay_all(self) -> None:
        """All letters that wait, in the order of the stream; they stay as they are."""
        with closing(connect_sync(self.address.state_url)) as state:
            waiting = [letter.id for letter in list_letters(state, pipeline=PIPELINE, state=State.OPEN)]
            stored = [find_letter(state, id) for id in waiting]
        for letter in stored:
            assert letter is not None
            self.sink.replay(letter.letter)

    def open_letters(self) -> list[OpenLetter]:
        with closing(connect_sync(self.address.state_url)) as state:
            return list_open(state, PIPELINE, SINK)


def build(
    source: str, target: str, tables: Sequence[str], *, patience: timedelta = PATIENCE, **settings: Any
) -> PostgresSink:
    """The state is kept at the source."""
    chosen = PostgresSinkSettings(name=SINK, url=target, **settings)
    return PostgresSink(chosen, pipeline=PIPELINE, source_url=source, state_url=source, tables=tables, patience=patience)


@contextmanager
def applying(
    source: str,
    target: str,
    tables: Sequence[str],
    *,
    patience: timedelta = PATIENCE,
    rule: SchemaChanges = SchemaChanges.EVOLVE,
) -> Iterator[Applying]:
    sink = build(source, target, tables, patience=patience, schema_changes=rule)
    sink.open()
    with closing(connect_sync(target)) as connection:
        (epoch,) = fetch_sync(connection, statements.hold_epoch(PIPELINE, SINK, []))
    session = Session(target)
    try:
        yield Applying(sink, Address(PIPELINE, SINK, target, source, patience, source, rule), epoch, session)
    finally:
        session.close()
        sink.close()


def by_key(delivery: Delivery, lanes: int) -> list[Delivery]:
    """The same changes in lanes by key, each lane a delivery."""
    first = delivery.frames[0]
    laned = list(split([frame.batch for frame in delivery.frames], lanes, LaneRule.KEY))
    found: dict[int, list[Frame]] = {}
    for one in laned:
        found.setdefault(one.lane, []).append(replace(first, lane=one.lane, key_lane=one.key_lane, batch=one.batch))
    return [Delivery(tuple(frames), delivery.span) for _, frames in sorted(found.items())]


def after(delivery: Delivery, number: int) -> Position:
    """The bound behind so many changes."""
    position = delivery.changes[number].position
    return Position(position.commit_lsn, position.ordinal)


def rows(url: str, table: str) -> list[str]:
    """A table's rows as texts, in order."""
    with closing(connect_sync(url)) as connection:
        query = sql.SQL('select t::text from {} as t order by t::text collate "C"').format(sql.Identifier(table))
        return [row for (row,) in connection.execute(query).fetchall()]


def execute(url: str, *lines: str) -> None:
    with closing(connect_sync(url)) as connection:
        for line in lines:
            connection.execute(line.encode())


def letters(url: str) -> list[LetterSummary]:
    with closing(connect_sync(url)) as connection:
        return list_letters(connection, pipeline=PIPELINE)
