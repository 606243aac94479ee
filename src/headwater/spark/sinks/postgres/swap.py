"""Whole tables swapped in, by the driver: rows that were loaded aside take the place of what the tables held.

All tables of an attempt are swapped in one transaction, together with the position that their changes go on from. First
goes what the source does not have, then what differs is written, and nothing else. Rows that the target refuses are found by
halving, and become dead letters. Tables that stand in each other's way by foreign keys are tried in turn.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

import psycopg
import pyarrow as pa

from headwater import failpoints
from headwater.model import Lineage, Lsn
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.statements import Statement, execute_sync, fetch_sync
from headwater.postgres.types import Types
from headwater.spark.frame import Chunk
from headwater.spark.letters import Letter, OpenLetter, letters_of_rows, list_open, post_letters, read_id, supersede
from headwater.spark.rules import SchemaChanges
from headwater.spark.sinks.postgres import loading_statements as statements
from headwater.spark.sinks.postgres.apply import reason_of
from headwater.spark.sinks.postgres.follow import Follower
from headwater.spark.sinks.postgres.loading_statements import Load, PieceOrigin, Range, SwapStatements, Tid
from headwater.spark.sinks.postgres.positions import hold
from headwater.spark.sinks.postgres.prepare import Expected, SourceTable, create_missing, require_fit
from headwater.spark.sinks.postgres.session import Address, Session, patiently
from headwater.spark.sinks.postgres.statements import limit_waiting
from headwater.spark.sinks.postgres.target import Sent, Target, read_targets
from headwater.spark.sinks.sink import Loading, Written
from headwater.spark.sources.layouts import read_layouts

_log = logging.getLogger(__name__)

# Data exceptions, violated constraints, and two rows that are merged into one.
_ROW_IS_WRONG = ("22", "23", "21000")
_FOREIGN_KEY = "23503"
# Rows that trade places under a second unique key, or one of exclusion, can only be written when all of them have left.
_TAKEN = ("23505", "23P01")
# The lock was not to be had, the right is missing, something depends on the table: its rows are written one by one then.
_NOT_REPLACEABLE = ("55P03", "42501", "2BP01", *_ROW_IS_WRONG)
# Long enough for a transaction that is at work, too short for one that reads all day.
_REPLACEMENT_MILLISECONDS = 2_000
_FOR_EVER = 0
# What tasks and the driver may not do to an attempt at the same time.
_LOCK = "loading"


class _Postponed(Exception):
    """What is in the way of a table may go with another one."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """A row that the target does not take, and why."""

    tid: Tid
    reason: str
    sqlstate: str

    @property
    def rows(self) -> Range:
        return Range(self.tid, (self.tid[0], self.tid[1] + 1))


@dataclass(frozen=True, slots=True)
class TableSwapper:
    """What the driver does for an attempt at loading tables; `lineage` names its rows in letters.

    If it `keeps_others`, rows that the source does not have stay.
    """

    address: Address
    session: Session
    epoch: int
    lineage: Lineage
    keeps_others: bool = False

    def begin(self, loading: Loading, source: Sequence[SourceTable], *, creates: bool) -> None:
        """Get ready for an attempt: make tables that are missing, and let go of attempts that have died.

        Tables that follow the source are brought to the shape in which they are read. An attempt that is swapped in already
        is left alone.
        """
        rule = self.address.schema_changes
        tables = [(one.table.schema, one.table.name) for one in source]
        layouts = read_layouts(self.address.source_url, tables) if rule.follows else {}

        def work() -> None:
            connection, address = self.session.connection, self.address
            follower = Follower(address, self.session)
            with connection.transaction():
                positions = hold(connection, address, self.epoch, [_LOCK], loading.tables)
                if any(one.attempt == loading.attempt for one in positions):
                    return
                require_fit(connection, source, Expected(creates, is_narrow=rule is SchemaChanges.IGNORE, followed=layouts))
                create_missing(connection, source)
                for one in source:
                    name = (one.table.schema, one.table.name)
                    if name in layouts:
                        identity = one.sent.identity or one.sent.key
                        follower.bring(name, layouts[name], identity, loading.position)
                for dead in fetch_sync(connection, statements.list_dead_attempts(address, loading.attempt, loading.tables)):
                    self._end_letters(partial(_is_of, dead))
                    self._forget(dead)
                execute_sync(connection, statements.begin_load(address, loading.attempt, loading.tables))
            for note in follower.report():
                _log.warning("sink %s: %s", address.sink, note, extra={"pipeline": address.pipeline, "sink": address.sink})

        patiently(self.address, self.session, work)

    def swap(self, loading: Loading) -> Written:
        """Put an attempt's rows in their place, unless they are there; counts the letters of those that were refused."""
        failpoints.hit("snapshot.swap")
        return patiently(self.address, self.session, lambda: self.swap_within(loading))

    def swap_within(self, loading: Loading) -> Written:
        """As `swap`, in the transaction that the session is in, if it is in one; whoever began it tries again."""
        connection, address, attempt = self.session.connection, self.address, loading.attempt
        with connection.transaction():
            self.session.begin()
            hold(connection, address, self.epoch, [_LOCK], [])
            # There are none of an attempt that is swapped in already.
            loads = fetch_sync(connection, statements.list_loads(address, attempt))
            tables = [(load.schema, load.table) for load in loads]
            # A replay holds its letter while it writes to the target: letters have to go before this writes there.
            self._end_letters(lambda letter: (letter.schema, letter.table) in tables and not letter.is_of(attempt))
            origin = next(iter(fetch_sync(connection, statements.find_any_piece(address, attempt))), None)
            refused = self._replace_rows(self._contents(loads))
            letters = [letter for content, rows in refused for letter in self._letters(content, rows, loading, origin)]
            post_letters(address.state_url, letters)
            server = (origin.system_identifier, origin.timeline) if origin else (self.lineage.system_identifier, None)
            execute_sync(connection, statements.replace_positions(address, attempt, tables, loading.position, server))
            self._forget(attempt)
        return Written(letters=len(letters))

    def _contents(self, loads: Sequence[Load]) -> list["_Content"]:
        """What the tables of the target are to hold; all of them are locked."""
        connection = self.session.connection
        targets = read_targets(connection, [(load.schema, load.table) for load in loads])
        found = []
        for load in loads:
            # One that only the source has: a transform has put its rows elsewhere.
            if (target := targets.get((load.schema, load.table))) is None:
                continue
            execute_sync(connection, statements.lock_target(target))
            swap = None
            if load.aside is not None:
                sent = Sent(tuple(load.columns), None if load.identity is None else tuple(load.identity))
                swap = SwapStatements(load.aside, self.session.fit_whole(load.schema, load.table, sent))
                execute_sync(connection, swap.analyze)
            found.append(_Content(connection, target, swap))
        return found

    def _replace_rows(self, contents: Sequence["_Content"]) -> list[tuple["_Content", list[_Refused]]]:
        """Bring all tables to their contents, and return what was refused."""
        if not self.keeps_others:
            _in_turn(contents, _Content.clear)
        return _in_turn(contents, _Content.fill)

    def _letters(
        self, content: "_Content", refused: Sequence[_Refused], loading: Loading, origin: PieceOrigin | None
    ) -> Iterator[Letter]:
        if content.swap is None:
            return
        until = origin.until if origin else loading.position.commit_lsn
        read_at = origin.read_at if origin else datetime.now(UTC)
        for one in refused:
            chunk = content.chunk(one, loading.attempt, self.lineage, until, read_at)
            whose = {"pipeline": self.address.pipeline, "sink": self.address.sink}
            (letter,) = letters_of_rows(chunk, {0: one.reason}, **whose)
            # Where the row is aside, as pieces are not known any more.
            row = f"{content.swap.aside}_{one.tid[0]}_{one.tid[1]}"
            event_id = read_id(self.lineage, until, loading.attempt, row)
            yield replace(letter, event_id=event_id, position=loading.position)

    def _end_letters(self, is_pointless: Callable[[OpenLetter], bool]) -> None:
        address = self.address
        with translated(address.state_url), closing(connect_sync(address.state_url)) as state:
            waiting = list_open(state, address.pipeline, address.sink)
            supersede(state, [letter.id for letter in waiting if is_pointless(letter)])

    def _forget(self, attempt: str) -> None:
        connection = self.session.connection
        for load in fetch_sync(connection, statements.list_loads(self.address, attempt)):
            if load.aside is not None:
                execute_sync(connection, statements.drop_aside(load.aside))
        execute_sync(connection, statements.forget_attempt(self.address, attempt))


@dataclass(frozen=True, slots=True)
class _Content:
    """What a table is to hold: the rows that are aside, or none at all."""

    connection: Connection
    target: Target
    swap: SwapStatements | None

    def clear(self, *, is_last: bool) -> list[_Refused]:
        """Take out what the source does not have."""
        swap = self.swap
        has_key = swap is not None and bool(swap.fit.key)
        statement = swap.delete_missing if swap is not None and has_key else statements.empty_target(self.target)
        try:
            with self.connection.transaction():
                execute_sync(self.connection, statement)
        except psycopg.errors.ForeignKeyViolation:
            if is_last:
                raise
            raise _Postponed from None
        return []

    def fill(self, *, is_last: bool) -> list[_Refused]:
        """Write what is not there, and return what the target does not take."""
        if self.swap is None:
            return []
        (has_rows,) = fetch_sync(self.connection, statements.has_rows(self.target))
        if not has_rows and self._take_place():
            return []
        write = self.swap.merge if has_rows else self.swap.insert
        error = self._attempt(write(Range()))
        if error is None:
            return []
        if error.sqlstate == _FOREIGN_KEY and not is_last:
            raise _Postponed
        refused = self._fill_carefully()
        if not is_last and any(one.sqlstate == _FOREIGN_KEY for one in refused):
            raise _Postponed
        return refused

    def chunk(self, refused: _Refused, attempt: str, lineage: Lineage, until: Lsn, read_at: datetime) -> Chunk:
        """A row that is aside, as if it had just been read."""
        swap = self._require_swap()
        fit, types = swap.fit, swap.fit.types
        (texts,) = fetch_sync(self.connection, swap.read(refused.rows))
        key = [fit.names[number] for number in fit.key]
        columns = tuple(RelationColumn(column.name, column.name in key, column.type_oid, -1) for column in fit.columns)
        return Chunk(
            attempt=attempt,
            piece=refused.tid[0],
            first_row=refused.tid[1],
            # The number of the source's table is not known here, and no number of the target's would mean anything there.
            relation=Relation(1, self.target.schema, self.target.name, "d", columns),
            rows=pa.RecordBatch.from_arrays([pa.array([text], pa.string()) for text in texts], names=list(fit.names)),
            own_types=tuple(types[oid] for oid in types if oid not in Types.builtin()),
            lineage=lineage,
            until=until,
            read_at=read_at,
        )

    def _take_place(self) -> bool:
        """Put the table with the rows itself in the place of an empty one, if nobody could tell them apart."""
        swap, connection = self._require_swap(), self.connection
        if fetch_sync(connection, swap.is_plain) != [True]:
            return False
        names, not_null = fetch_sync(connection, swap.list_names), fetch_sync(connection, swap.list_not_null)
        constrain = swap.constrain(names, not_null)
        try:
            with connection.transaction():
                fetch_sync(connection, limit_waiting(_REPLACEMENT_MILLISECONDS))
                for statement in ([constrain] if constrain else []) + swap.replace:
                    execute_sync(connection, statement)
                old = {tuple(one.columns): one.name for one in names if not one.is_primary}
                for one in fetch_sync(connection, swap.list_names):
                    name = old.get(tuple(one.columns), one.name)
                    if not one.is_primary and name != one.name:
                        execute_sync(connection, swap.rename_constraint(one.name, name))
                fetch_sync(connection, limit_waiting(_FOR_EVER))
        except psycopg.Error as exc:
            if not (exc.sqlstate or "").startswith(_NOT_REPLACEABLE):
                raise
            return False
        return True

    def _fill_carefully(self) -> list[_Refused]:
        """Write all rows that the target takes, in ever smaller parts."""
        swap = self._require_swap()
        (pages,) = fetch_sync(self.connection, swap.count_pages)
        refused = list(self._split((0, 0), (pages, 0)))
        count = len(refused) + 1
        # What was in the way of a row may have gone with a later one.
        while 0 < len(refused) < count:
            count = len(refused)
            refused = [again for one in refused if (again := self._again(one))]
        taken = [one for one in refused if one.sqlstate in _TAKEN]
        if taken and self._trade_places(taken):
            refused = [one for one in refused if one not in taken]
        return refused

    def _split(self, start: Tid, end: Tid) -> Iterator[_Refused]:
        swap, rows = self._require_swap(), Range(start, end)
        error = self._attempt(self._write(rows))
        if error is None:
            return
        if end[0] - start[0] > 1:
            middle = ((start[0] + end[0]) // 2, 0)
        else:
            tids = [_parsed(text) for text in fetch_sync(self.connection, swap.list_tids(rows))]
            if len(tids) == 1:
                yield _Refused(tids[0], reason_of(error), error.sqlstate or "")
                return
            middle = tids[len(tids) // 2]
        yield from self._split(start, middle)
        yield from self._split(middle, end)

    def _again(self, refused: _Refused) -> _Refused | None:
        if refused.sqlstate not in (*_TAKEN, _FOREIGN_KEY):
            return refused
        error = self._attempt(self._write(refused.rows))
        return None if error is None else _Refused(refused.tid, reason_of(error), error.sqlstate or "")

    def _trade_places(self, refused: Sequence[_Refused]) -> bool:
        """Write rows that stand in each other's way, after all of them have left; whether that was it."""
        swap = self._require_swap()
        # A delete that others follow, by a foreign key, would take more with it than comes back.
        if not swap.fit.key or fetch_sync(self.connection, statements.is_replica()) != [True]:
            return False
        steps = [swap.delete(one.rows) for one in refused] + [swap.insert(one.rows) for one in refused]
        try:
            with self.connection.transaction():
                for step in steps:
                    execute_sync(self.connection, step)
        except psycopg.Error as exc:
            if not (exc.sqlstate or "").startswith(_ROW_IS_WRONG):
                raise
            return False
        return True

    def _write(self, rows: Range) -> Statement[None]:
        swap = self._require_swap()
        return swap.merge(rows) if swap.fit.key else swap.insert(rows)

    def _attempt(self, statement: Statement[None]) -> psycopg.Error | None:
        """What a row was refused for, if one was; nothing is written then."""
        try:
            with self.connection.transaction():
                execute_sync(self.connection, statement)
        except psycopg.Error as exc:
            if not (exc.sqlstate or "").startswith(_ROW_IS_WRONG):
                raise
            return exc
        return None

    def _require_swap(self) -> SwapStatements:
        if self.swap is None:
            raise ValueError(f"no row of {self.target} is aside")
        return self.swap


def _in_turn(contents: Sequence[_Content], step: Callable[..., list[_Refused]]) -> list[tuple[_Content, list[_Refused]]]:
    """Do a step for all tables; one that has to wait for another is tried again after it."""
    waiting, failures, done = deque(contents), 0, []
    while waiting:
        content = waiting.popleft()
        try:
            with content.connection.transaction():
                done.append((content, step(content, is_last=failures > len(waiting))))
            failures = 0
        except _Postponed:
            waiting.append(content)
            failures += 1
    return done


def _is_of(attempt: str, letter: OpenLetter) -> bool:
    return letter.is_of(attempt)


def _parsed(tid: str) -> Tid:
    page, number = tid[1:-1].split(",")
    return int(page), int(number)
