"""The ledger of a session: which of its events are recorded, which are rows, and what becomes of them."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from headwater.errors import OutboxError
from headwater.outbox.ids import make_ids
from headwater.outbox.sqlalchemy.insert import INSERT, database_of, insert
from headwater.outbox.sqlalchemy.recordable import CollectsEvents, Made
from headwater.outbox.sqlalchemy.watch import Watch

if TYPE_CHECKING:
    from headwater.outbox.relay import LeasedEvent, OutboxRelay

_log = logging.getLogger(__name__)

# What the `info` of a session has of ours.
RELAY: Final = "headwater.outbox.relay"
LEDGER: Final = "headwater.outbox.ledger"


@dataclass(slots=True, eq=False)
class Recorded:
    """An event, and the transaction or savepoint that it goes with."""

    made: Made
    entity: object | None
    level: SessionTransaction | None
    # Whether that was in a savepoint which is not the session's.
    is_in_foreign: bool


@dataclass(slots=True, eq=False)
class Written:
    """An event that is a row by now, written within a transaction or savepoint."""

    recorded: Recorded
    leased: "LeasedEvent"
    connection: sa.Connection
    level: SessionTransaction | None


class Ledger:
    """The events of one session, in the order of recording.

    An event belongs to the level, root or savepoint, that it was recorded in, and its row to the one that it was written in.
    A released savepoint hands both to the level around it. One that is undone takes along what was recorded in it, while
    what was recorded before and written in it is to be written again.

    A savepoint that the session has not made is left to the server: an event that was recorded in it is written in it, at
    once or with its entity, and has no lease. One of before waits until the savepoint has ended, unless its entity does not.
    """

    def __init__(self, session: Session, relay: "OutboxRelay") -> None:
        self._session, self._relay = session, relay
        self._unwritten: list[Recorded] = []
        self._written: list[Written] = []
        # Whether a commit has passed the last hook of ours that is sure to come, so that nothing may wait any more.
        self._is_committing = self._is_late = False
        # From the commit to the end of the transaction: what comes then is for the next one.
        self._has_committed = False
        self._watches: dict[sa.Connection, Watch] = {}

    def add(self, made: Made, entity: object | None, level: SessionTransaction | None = None) -> None:
        session = self._session
        if not session.in_transaction():
            if not session.autobegin:
                raise OutboxError(
                    "an event has to be recorded in a transaction, and the session, which opens none by itself, has none; "
                    "record it inside of `with session.begin():`"
                )
            # As a change of an entity would: from now on there is something to commit, or to roll back.
            session.begin()
        level = None if self._has_committed else level or _level_of(session)
        recorded = Recorded(made, entity, level, self._is_in_foreign_savepoint)
        self._unwritten.append(recorded)
        if self._is_late:
            self._write_due()
        elif recorded.is_in_foreign and made.encoded is not None and not self._is_to_be_flushed(entity):
            self.write(lambda each: each is recorded)

    def collect(self, level: SessionTransaction | None = None) -> None:
        """Ask the entities that keep their own events for them."""
        for entity in _collecting(self._session):
            for event in entity.collect_events():
                self.add(Made.of(event), entity, level)

    def write(self, is_wanted: "Callable[[Recorded], bool]" = lambda _: True) -> None:
        """Make rows of what was recorded; when that fails, it is as it was."""
        # Again, since functions that make events may record some.
        while taken := [each for each in self._unwritten if is_wanted(each)]:
            # In the order of recording, whenever their entities came to the session; ids that are made together rise.
            taken.sort(key=lambda each: each.made.at)
            self._unwritten = [each for each in self._unwritten if not is_wanted(each)]
            try:
                ids = make_ids(len(taken))
                encoded = [each.made.ready(id_) for each, id_ in zip(taken, ids, strict=True)]
                connections = [self._connection(each.entity) for each in taken]
                leased = self._relay.prepare(encoded)
                for each, connection, one in zip(taken, connections, leased, strict=True):
                    if not self._is_to_be_handed_over(each, connection):
                        one.locked_by = one.lease_seconds = None
                for connection, group in groupby(zip(connections, leased, strict=True), lambda pair: pair[0]):
                    insert(connection, [each for _, each in group])
            except BaseException:
                self._unwritten[:0] = taken
                raise
            level = _level_of(self._session)
            self._written += map(Written, taken, leased, connections, [level] * len(taken))

    def _write_due(self) -> None:
        """All; but in a savepoint that is not the session's only what goes with it, unless there is no later time."""
        is_last = self._is_committing and self._session.get_nested_transaction() is None
        if is_last or not self._is_in_foreign_savepoint:
            self.write()
        else:
            self.write(lambda each: each.is_in_foreign or each.entity is not None)

    def connected(self, connection: sa.Connection) -> None:
        """The session has begun a transaction, or a savepoint, on a connection."""
        watch = self._watches.get(connection)
        if watch is None:
            watch = self._watches[connection] = Watch(connection, lambda: bool(self._unwritten or self._written))
        watch.own()

    def committing(self) -> None:
        # Before what is left: an event that is made when it is written may be about a row that is not there yet.
        self._session.flush()
        self.collect()
        self._is_committing = True
        self._write_due()
        self._is_late = True

    def flushing(self) -> None:
        self._is_late = False
        self.collect()

    def flushed(self) -> None:
        self._write_due()
        self._is_late = self._is_committing

    def committed(self) -> None:
        """A savepoint is released; or the transaction has committed, and its events are handed over."""
        session = self._session
        self._is_committing = self._is_late = False
        savepoint = session.get_nested_transaction()
        if savepoint is not None:
            self._move(savepoint, _boundary(savepoint.parent))
            return
        # A connection that is still in a transaction has joined one of somebody else, who may yet roll it back.
        leased = [each.leased for each in self._written if not each.connection.in_transaction()]
        self._written.clear()
        if leased:
            self._relay.hand_over(leased)
        self._has_committed = True
        if self._unwritten:
            said = "%d events were recorded when their transaction was about to commit; they go with the session's next one"
            _log.warning(said, len(self._unwritten))
            self._move(session.get_transaction(), None)

    def begun(self, transaction: SessionTransaction) -> None:
        if transaction.nested:
            self.collect(_boundary(transaction.parent))
        elif transaction.parent is None:
            self._move(None, transaction)

    def ended(self, transaction: SessionTransaction) -> None:
        """Whatever is still of this level was not committed."""
        if not transaction.nested and transaction.parent is not None:
            return
        again = [each.recorded for each in self._written if each.level is transaction]
        self._written = [each for each in self._written if each.level is not transaction]
        self._unwritten = [each for each in (*again, *self._unwritten) if each.level is not transaction]
        self._is_committing = self._is_late = self._has_committed = False
        if not transaction.nested:
            for watch in self._watches.values():
                watch.close()
            self._watches.clear()

    def rolled_back(self) -> None:
        """What entities have recorded on their own and were not asked for."""
        for entity in _collecting(self._session):
            for _ in entity.collect_events():
                pass

    def left(self, entity: object) -> list[Made]:
        """Take out what is not written yet of an entity that has left the session."""
        made = [each.made for each in self._unwritten if each.entity is entity]
        self._unwritten = [each for each in self._unwritten if each.entity is not entity]
        return made

    def _connection(self, entity: object | None) -> sa.Connection:
        """That of the entity's database, by the rules of the session."""
        try:
            connection = self._session.connection(bind_arguments=_arguments(entity))
        except UnboundExecutionError as exc:
            raise OutboxError(
                "the session does not know which database an event without an entity goes to; give it a bind, or record the "
                "event on an entity"
            ) from exc
        if connection.dialect.name != "postgresql":
            raise OutboxError(
                f"events are written to PostgreSQL, and the session is bound to {connection.dialect.name}; bind it to the "
                "database that has the outbox"
            )
        return connection

    @property
    def _is_in_foreign_savepoint(self) -> bool:
        return any(watch.is_in_foreign_savepoint for watch in self._watches.values())

    def _is_to_be_flushed(self, entity: object | None) -> bool:
        session = self._session
        return entity is not None and (entity in session.new or entity in session.deleted or session.is_modified(entity))

    def _is_to_be_handed_over(self, recorded: Recorded, connection: sa.Connection) -> bool:
        """Whether we will know what becomes of the row, and the relay is that of its database."""
        if self._is_joined(recorded.entity) or self._watches[connection].is_in_foreign_savepoint:
            return False
        return self._relay.serves(database_of(connection))

    def _is_joined(self, entity: object | None) -> bool:
        """Whether the session works on somebody else's connection, who may be in a transaction of their own.

        Nobody tells when that commits, so a lease would only keep relays away from the row.
        """
        return isinstance(self._session.get_bind(**_arguments(entity)), sa.Connection)

    def _move(self, source: SessionTransaction | None, target: SessionTransaction | None) -> None:
        rows: list[Recorded | Written] = [*self._unwritten, *self._written, *(each.recorded for each in self._written)]
        for each in rows:
            if each.level is source:
                each.level = target


def _arguments(entity: object | None) -> dict[str, Any]:
    mapped = {} if entity is None else {"mapper": sa.inspect(entity).mapper}
    return {**mapped, "clause": INSERT}


def has_relay(session: Session) -> bool:
    """Not if it was made before the relay was installed."""
    return RELAY in session.info


def ledger_of(session: Session) -> Ledger:
    ledger: Ledger | None = session.info.get(LEDGER)
    if ledger is None:
        ledger = session.info[LEDGER] = Ledger(session, session.info[RELAY])
    return ledger


def _level_of(session: Session) -> SessionTransaction | None:
    return session.get_nested_transaction() or session.get_transaction()


def _boundary(transaction: SessionTransaction | None) -> SessionTransaction | None:
    """The savepoint or root that a transaction is part of; a flush has one of its own, which is neither."""
    while transaction is not None and not transaction.nested and transaction.parent is not None:
        transaction = transaction.parent
    return transaction


def _collecting(session: Session) -> Iterator[CollectsEvents]:
    for entity in (*session.new, *session.deleted, *session.identity_map.values()):
        if hasattr(type(entity), "collect_events"):
            yield entity
