"""The changes of a task written to the target in one transaction, together with how far each table is then.

The transaction holds the epoch of the sink, so that no later run can take over while it writes, and ends without a trace if
one has. Dead letters are in the state database before it commits; should it fail then, the same letters come again.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

from headwater import failpoints
from headwater.errors import SinkError
from headwater.model import Lineage, Position
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.statements import fetch_sync
from headwater.spark.letters import Letter, OpenLetter, list_open, save_letters, supersede
from headwater.spark.sinks.postgres.apply import Halted, Refused, TableWriter
from headwater.spark.sinks.postgres.box import LetterBox, Postponed, Run
from headwater.spark.sinks.postgres.follow import Follower
from headwater.spark.sinks.postgres.log import Log
from headwater.spark.sinks.postgres.positions import check_origin, hold, move_on
from headwater.spark.sinks.postgres.session import Address, Session, patiently
from headwater.spark.sinks.postgres.statements import LanePosition, Reached, Table, limit_waiting
from headwater.spark.sinks.sink import Span, Written

# What a row may be refused for only because another table's is not there yet, and in key lanes another lane's: a foreign
# key; a unique or exclusion constraint.
_OTHER_TABLES = ("23503",)
_OTHER_LANES = ("23503", "23505", "23P01")
# A replay takes no longer than a change; one that stands in the way has the whole transaction done again.
_REPLAY_MILLISECONDS = 5_000


class Inputs(Protocol):
    """What a task got, by table."""

    @property
    def tables(self) -> list[Table]: ...

    @property
    def changes(self) -> int: ...

    @property
    def has_key_lanes(self) -> bool: ...

    @property
    def lineages(self) -> Sequence[Lineage]:
        """Whose positions the changes have."""

    @property
    def locks(self) -> list[str]:
        """What no other task writes at the same time, except one that does the same again."""

    def reached(self, end: Position) -> list[Reached]:
        """The lanes that are further on when all is applied."""

    def runs(self, table: Table, positions: Iterable[LanePosition]) -> Sequence[Run]:
        """What is not applied yet of a table's changes, in order."""

    def unreadable(self, positions: Iterable[LanePosition], address: Address) -> list[Letter]:
        """The letters of changes that are not applied yet, and never can be."""


class Ledger(Protocol):
    """Knows how far tables are, and writes it down in the transaction of the changes."""

    def hold(self, connection: Connection, inputs: Inputs) -> Sequence[LanePosition]:
        """How far the tables are, once it is sure that nobody else writes to them until the transaction ends."""

    def move_on(self, connection: Connection, positions: Sequence[LanePosition], inputs: Inputs, span: Span) -> None:
        """Say that all of the inputs is applied."""


@dataclass(frozen=True, slots=True)
class SinkLedger:
    """The positions of a sink, by lane; writing is up to the run that has taken the last epoch."""

    address: Address
    epoch: int

    def hold(self, connection: Connection, inputs: Inputs) -> Sequence[LanePosition]:
        positions = hold(connection, self.address, self.epoch, inputs.locks, inputs.tables)
        check_origin(self.address, positions, inputs.lineages)
        return positions

    def move_on(self, connection: Connection, positions: Sequence[LanePosition], inputs: Inputs, span: Span) -> None:
        move_on(connection, self.address, positions, inputs.reached(span.end), span)


class Contended(Exception):
    """What is in the way of these changes may go with those of other tasks; nothing was written."""


@dataclass(frozen=True, slots=True)
class LaneWriter:
    """Writes what a task got. `is_alone` when no other task has changes of the same batch.

    Without a `ledger` of its own, positions are those of the sink.
    """

    address: Address
    session: Session
    epoch: int
    is_alone: bool
    # What was done to tables that the source has altered, in sentences.
    notes: list[str] = field(default_factory=list)
    ledger: Ledger | None = None

    def write(self, inputs: Inputs, span: Span, open_letters: Sequence[OpenLetter]) -> Written:
        """Raises Contended, SinkFenced, SinkUnavailable or SinkError, and has then written nothing."""
        if not inputs.tables:
            return Written()

        def attempt() -> Written:
            try:
                return self._attempt(inputs, span, open_letters, is_careful=False)
            except (Halted, Postponed):
                self.session.forget()
                return self._attempt(inputs, span, open_letters, is_careful=True)

        return patiently(self.address, self.session, attempt)

    def _attempt(self, inputs: Inputs, span: Span, open_letters: Sequence[OpenLetter], *, is_careful: bool) -> Written:
        follower = Follower(self.address, self.session)
        written = _Attempt(self, inputs, open_letters, follower, is_careful).write(span)
        self.notes[:] = follower.report()
        return written


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One transaction: quick, in the hope that the target takes everything, or if it did not, `is_careful`."""

    lane: LaneWriter
    inputs: Inputs
    open_letters: Sequence[OpenLetter]
    follower: Follower
    is_careful: bool

    def write(self, span: Span) -> Written:
        session, address, inputs = self.lane.session, self.lane.address, self.inputs
        connection = session.connection
        with connection.transaction():
            session.begin()
            ledger = self.lane.ledger or SinkLedger(address, self.lane.epoch)
            positions = ledger.hold(connection, inputs)
            work = {table: runs for table in inputs.tables if (runs := inputs.runs(table, positions))}
            boxes = self._apply(work)
            ledger.move_on(connection, positions, inputs, span)
            unreadable = inputs.unreadable(positions, address)
            refused = [letter for box in boxes for letter in box.letters()]
            if unreadable or refused:
                self._save([*unreadable, *refused], boxes)
            self.follower.request_loads()
            failpoints.hit("postgres_sink.applied")
        failpoints.hit("postgres_sink.committed")
        left, letters = sum(len(run) for runs in work.values() for run in runs), len(refused) + len(unreadable)
        return Written(left - len(refused), inputs.changes - left - len(unreadable), letters)

    def _apply(self, work: dict[Table, Sequence[Run]]) -> list[LetterBox]:
        """Write the tables one after the other; one that has to wait for another is tried again after it."""
        passing = _OTHER_LANES if self.inputs.has_key_lanes and not self.lane.is_alone else _OTHER_TABLES
        waiting, failures = deque(work), 0
        boxes = []
        while waiting:
            table = waiting.popleft()
            is_last = self.lane.is_alone and failures > len(waiting)
            letters = [letter for letter in self.open_letters if (letter.schema, letter.table) == table]
            box = LetterBox(self.lane.address, work[table][0], () if is_last else passing, letters)
            try:
                with self.lane.session.connection.transaction() if self.is_careful else nullcontext():
                    self._apply_table(table, box, work[table])
            except Postponed:
                if not self.is_careful:
                    raise
                # Staging tables that were made for it are gone, and so is what was done to it.
                self.lane.session.forget()
                waiting.append(table)
                failures += 1
                if failures >= len(waiting) and not self.lane.is_alone:
                    raise Contended from None
            else:
                boxes.append(box)
                failures = 0
        return boxes

    def _apply_table(self, table: Table, box: LetterBox, runs: Sequence[Run]) -> None:
        """Write the runs one after the other: each may find the table as the one before has left it, and alter it."""
        for run in runs:
            fit, staging = self.follower.fit(table, run)
            log = run.log(fit)
            box.run = run
            self._end_letters(box.outdate(log), is_first=run is runs[0])
            box.turn_to(run, log)
            TableWriter(self.lane.session.connection, staging, box, self.is_careful).apply(log)

    def _end_letters(self, outdated: Sequence[int], *, is_first: bool) -> None:
        """Let go of letters before the change is written that makes them pointless."""
        if not outdated:
            return
        with closing(connect_sync(self.lane.address.state_url)) as state, state.transaction():
            if not is_first:
                # A replay holds its letter while it writes to the target, and may wait there for what was written already.
                fetch_sync(state, limit_waiting(_REPLAY_MILLISECONDS))
            supersede(state, outdated)

    def _save(self, letters: Sequence[Letter], boxes: Sequence[LetterBox]) -> None:
        """Keep the letters; those that were outdated at once are never seen as open."""
        # A position is that of one change, whatever its table.
        outdated = {position for box in boxes for position in box.outdated}
        address = self.lane.address
        with translated(address.state_url), closing(connect_sync(address.state_url)) as state, state.transaction():
            save_letters(state, letters)
            if outdated:
                waiting = list_open(state, address.pipeline, address.sink)
                supersede(state, [letter.id for letter in waiting if letter.position in outdated])


class _Raising:
    """Raises what is said against a change."""

    def before(self, log: Log) -> None:
        """Nothing is known against it."""

    def after(self, log: Log) -> None:
        """Nothing follows from it."""

    def refuse(self, log: Log, refused: Refused) -> None:
        raise refused


def replay_change(address: Address, session: Session, inputs: Inputs, *, moves: bool) -> None:
    """Write changes by themselves, whatever the positions are; raises SinkError with the reason if they are refused.

    Unless it `moves`, a row that gets another key has left its old one already.
    """

    def write() -> None:
        with session.connection.transaction():
            session.begin()
            for table in inputs.tables:
                for run in inputs.runs(table, ()):
                    fit, staging = session.fit(*table, run.sent)
                    log = run.log(fit)
                    # A row that left its old key when it was refused stays away: the key may be another row's by now.
                    log = replace(log, moved=log.moved & moves)
                    TableWriter(session.connection, staging, _Raising(), is_careful=True).apply(log)

    try:
        patiently(address, session, write)
    except Refused as refused:
        raise SinkError(address.sink, f"the change still cannot be applied: {refused.reason}") from refused
