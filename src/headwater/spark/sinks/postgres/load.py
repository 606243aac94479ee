"""Rows of whole tables loaded aside, by tasks: a piece in one transaction, together with a mark that it is there.

The rows of a piece are written as they come, so that a task holds no more than one part of it. What an earlier try of the
task has loaded is left out, and so is all of an attempt that has died since or is swapped in already.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby
from typing import Protocol

import psycopg
import pyarrow as pa

from headwater import failpoints
from headwater.model import Lineage, Lsn
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.frame import Chunk
from headwater.spark.letters import Letter, letter_of_read_envelope, letters_of_rows, post_letters
from headwater.spark.rules import SchemaChanges
from headwater.spark.sinks.postgres import loading_statements as statements
from headwater.spark.sinks.postgres.apply import reason_of
from headwater.spark.sinks.postgres.copy_text import copy_text
from headwater.spark.sinks.postgres.envelope import EnvelopeRun, Envelopes
from headwater.spark.sinks.postgres.loading_statements import PieceOrigin
from headwater.spark.sinks.postgres.positions import hold, timeline_before
from headwater.spark.sinks.postgres.session import Address, Session, open_target, patiently
from headwater.spark.sinks.postgres.statements import Table
from headwater.spark.sinks.postgres.target import Fit, Sent
from headwater.spark.sinks.postgres.wire import sent_of
from headwater.spark.sinks.sink import Loading, Written

# A value that is none of its type; there are no constraints aside.
_VALUE_IS_WRONG = "22"


class Rows(Protocol):
    """Some rows of one table that came together."""

    @property
    def table(self) -> Table: ...

    @property
    def sent(self) -> Sent: ...

    @property
    def origin(self) -> PieceOrigin: ...

    def __len__(self) -> int: ...

    def texts(self, fit: Fit) -> Sequence[pa.Array]:
        """The columns as the target reads them."""

    def letters(self, reasons: Mapping[int, str]) -> list[Letter]:
        """The letters of rows, by their number."""


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The rows of a chunk."""

    chunk: Chunk
    loading: Loading
    address: Address

    @property
    def table(self) -> Table:
        return self.chunk.relation.schema, self.chunk.relation.name

    @property
    def sent(self) -> Sent:
        return sent_of(self.chunk.relation)

    @property
    def origin(self) -> PieceOrigin:
        chunk, lineage = self.chunk, self.chunk.lineage
        timeline = timeline_before(lineage, self.loading.position.commit_lsn)
        return PieceOrigin(lineage.system_identifier, timeline, chunk.until, chunk.read_at)

    def __len__(self) -> int:
        return int(self.chunk.rows.num_rows)

    def texts(self, fit: Fit) -> Sequence[pa.Array]:
        return [self.chunk.rows.column(name) for name in fit.names]

    def letters(self, reasons: Mapping[int, str]) -> list[Letter]:
        return letters_of_rows(self.chunk, reasons, pipeline=self.address.pipeline, sink=self.address.sink)


@dataclass(frozen=True, slots=True)
class EnvelopeRows:
    """Rows of one table that went through a transform, with the same columns."""

    table: Table
    run: EnvelopeRun
    attempt: str
    address: Address

    @property
    def sent(self) -> Sent:
        return self.run.sent

    @property
    def origin(self) -> PieceOrigin:
        first = self.run.rows[0].envelope
        # The lineage is that of the start of the run: a standby may have been promoted since.
        return PieceOrigin(self.run.lineage.system_identifier, None, Lsn(first["commit_lsn"]), first["committed_at"])

    def __len__(self) -> int:
        return len(self.run.rows)

    def texts(self, fit: Fit) -> Sequence[pa.Array]:
        return self.run.log(fit).values

    def letters(self, reasons: Mapping[int, str]) -> list[Letter]:
        whose = {"pipeline": self.address.pipeline, "sink": self.address.sink}
        envelopes = ((self.run.rows[row].envelope, reason) for row, reason in reasons.items())
        return [letter_of_read_envelope(one, self.run.lineage, self.attempt, reason, **whose) for one, reason in envelopes]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Rows that went through a transform, and are no rows any more: letters from the beginning."""

    letters: Sequence[Letter]

    def __len__(self) -> int:
        return len(self.letters)


@dataclass(frozen=True, slots=True)
class PieceLoader:
    """Loads what a task got of an attempt."""

    address: Address
    session: Session
    epoch: int
    loading: Loading

    def load(self, rows: Iterable[Rows | Unreadable], piece: int, part: int = 0) -> Written:
        """Load a piece, or a part of several; raises SinkFenced, SinkUnavailable or SinkError, with nothing loaded."""
        # A target that is away is waited for only here: rows that have come cannot be asked for again.
        patiently(self.address, self.session, lambda: self.session.connection)
        at_once = replace(self.address, patience=timedelta(0))
        return patiently(at_once, self.session, lambda: self._load(rows, piece, part))

    def make_aside(self, fit: Fit, sent: Sent) -> str:
        """The name of the table for the attempt's rows of another one, which is made if it is missing."""
        address, attempt, target = self.address, self.loading.attempt, fit.target
        name = statements.aside_name(address, attempt, (target.schema, target.name))
        columns = [column for column in target.columns if not column.is_generated]
        # On a connection of its own: other tasks must not wait for the end of this one to begin with the same table.
        with closing(open_target(address.url)) as connection, connection.transaction():
            hold(connection, address, self.epoch, [name], [])
            execute_sync(connection, statements.create_aside(name, columns))
            execute_sync(connection, statements.save_aside(address, attempt, target, sent.columns, sent.identity))
        return name

    def _load(self, rows: Iterable[Rows | Unreadable], piece: int, part: int) -> Written:
        address, attempt, connection = self.address, self.loading.attempt, self.session.connection
        work = _Work(self)
        with connection.transaction():
            self.session.begin()
            hold(connection, address, self.epoch, [f"load {attempt} {piece} {part}"], [])
            is_known = bool(fetch_sync(connection, statements.list_loads(address, attempt)))
            if not is_known or fetch_sync(connection, statements.find_piece(address, attempt, piece, part)):
                return Written(skipped=sum(map(len, rows)))
            for some in rows:
                work.write(some)
            post_letters(address.state_url, work.letters)
            if work.origin is not None:
                execute_sync(connection, statements.save_piece(address, attempt, piece, part, work.origin))
            failpoints.hit("snapshot.loaded")
        return Written(changes=work.loaded - len(work.letters), letters=len(work.letters))


@dataclass(slots=True)
class _Work:
    """A piece that is being loaded."""

    loader: PieceLoader
    letters: list[Letter] = field(default_factory=list)
    loaded: int = 0
    origin: PieceOrigin | None = None
    _fits: dict[tuple[Table, Sent], tuple[Fit, str]] = field(default_factory=dict)

    def write(self, rows: Rows | Unreadable) -> None:
        self.loaded += len(rows)
        if isinstance(rows, Unreadable):
            self._refuse(rows.letters)
            return
        fit, aside = self._fit(rows.table, rows.sent)
        self.origin = self.origin or rows.origin
        reasons: dict[int, str] = {}
        self._copy(aside, fit, rows.texts(fit), 0, reasons)
        self._refuse(rows.letters(reasons))

    def _refuse(self, letters: Iterable[Letter]) -> None:
        # All changes that come for these tables later are at or after this position, and newer than the row.
        position = self.loader.loading.position
        self.letters += [replace(letter, position=position) for letter in letters]

    def _copy(self, aside: str, fit: Fit, columns: Sequence[pa.Array], first: int, reasons: dict[int, str]) -> None:
        """Copy rows, in ever smaller parts where one is refused."""
        connection, count = self.loader.session.connection, len(columns[0])
        statement = statements.copy_aside(aside, fit.names)
        try:
            with connection.transaction(), connection.cursor() as cursor, cursor.copy(statement.query) as copy:
                for piece in copy_text(columns):
                    copy.write(piece)
        except psycopg.Error as exc:
            if not (exc.sqlstate or "").startswith(_VALUE_IS_WRONG):
                raise
            if count == 1:
                reasons[first] = reason_of(exc)
                return
            half = count // 2
            self._copy(aside, fit, [column.slice(0, half) for column in columns], first, reasons)
            self._copy(aside, fit, [column.slice(half) for column in columns], first + half, reasons)

    def _fit(self, table: Table, sent: Sent) -> tuple[Fit, str]:
        """How rows go into the table, and where they wait until all are there."""
        if (table, sent) not in self._fits:
            loader = self.loader
            is_narrow = loader.address.schema_changes is SchemaChanges.IGNORE
            fit = loader.session.fit_whole(*table, sent, is_narrow=is_narrow)
            self._fits[table, sent] = fit, loader.make_aside(fit, replace(sent, columns=fit.names))
        return self._fits[table, sent]


def chunk_pieces(chunks: Iterable[Chunk], loading: Loading, address: Address) -> Iterator[tuple[int, Iterator[Rows]]]:
    """The chunks of a task by piece."""
    for piece, of_piece in groupby(chunks, key=lambda chunk: chunk.piece):
        yield piece, (ChunkRows(chunk, loading, address) for chunk in of_piece)


def envelope_rows(
    batches: Iterable[pa.RecordBatch], lineage: Lineage, attempt: str, address: Address
) -> Iterator[Rows | Unreadable]:
    """Rows of the DataFrame `changes` with the op `r`, by table."""
    for batch in batches:
        found = Envelopes(batch.to_pylist(), lineage, address.sink)
        for table in found.tables:
            yield from (EnvelopeRows(table, run, attempt, address) for run in found.runs(table, ()))
        if found.bad:
            whose = {"pipeline": address.pipeline, "sink": address.sink}
            bad = (({**envelope, "key": None}, reason) for envelope, reason in found.bad)
            yield Unreadable([letter_of_read_envelope(one, lineage, attempt, reason, **whose) for one, reason in bad])
