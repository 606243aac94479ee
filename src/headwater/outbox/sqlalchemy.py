"""Domain events of SQLAlchemy sessions: written when a session flushes, and handed to the relay when it has committed.

`install` prepares a session factory, sync or async. From then on events come from entities (`HasEvents`, or whatever has a
method `collect_events`) and from `record_event`. They are rows of the session's own transaction: what is rolled back, as a
whole or to a savepoint, is neither written nor published, and is on no entity any more. Nobody tells a session what becomes
of savepoints that it has not made; what is written in such a one is not handed over, and relays find it in the table.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast, runtime_checkable
from uuid import UUID

from headwater.errors import OutboxError, SettingsError
from headwater.outbox.event import MAX_PAYLOAD_BYTES, EncodedEvent, Event, encode_events
from headwater.outbox.ids import make_ids
from headwater.outbox.relay.tracing import publish_span
from headwater.outbox.trace import trace_headers

try:
    import sqlalchemy as sa
    from sqlalchemy import event as hooks
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.exc import UnboundExecutionError
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
    from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker
except ImportError as exc:
    raise SettingsError("SQLAlchemy 2 is needed, and is not installed; run `pip install 'headwater[sqlalchemy]'`") from exc

if TYPE_CHECKING:
    from headwater.outbox.relay import LeasedEvent, OutboxRelay

_log = logging.getLogger(__name__)

__all__ = ["CollectsEvents", "HasEvents", "install", "record_event"]

Factory: TypeAlias = "sessionmaker[Any] | scoped_session[Any] | async_sessionmaker[Any] | async_scoped_session[Any]"
AnySession: TypeAlias = "Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any]"
# An event, or what makes it when it is written: by then the database has given keys and defaults to new entities.
Recordable: TypeAlias = "Event | Callable[[], Event]"

_RELAY: Final = "headwater.outbox.relay"
_LEDGER: Final = "headwater.outbox.ledger"
_OWN: Final = "_headwater_events"

# Those that SQLAlchemy makes by itself have names of its own.
_SAVEPOINT: Final = re.compile(r"\s*savepoint\b", re.IGNORECASE)
_MADE: Final = re.compile(r"\s*savepoint\s+sa_savepoint_", re.IGNORECASE)
_END: Final = re.compile(r"(?is)\s*(?:(?:rollback|abort)\b(?!.*\bto\b)|(?:commit|end)\b)(?!\s+prepared\b)")

_OUTBOX: Final = sa.Table(
    "outbox_message",
    sa.MetaData(),
    sa.Column("id", sa.Uuid),
    *(sa.Column(name, sa.Text) for name in ("topic", "type", "key", "locked_by")),
    *(sa.Column(name, postgresql.JSON) for name in ("payload", "headers")),
    *(sa.Column(name, sa.DateTime(timezone=True)) for name in ("created_at", "locked_until")),
    schema="headwater",
)
# Payload and headers are JSON texts already, which the type of the columns would write as strings once more.
_INSERT: Final = (
    sa.insert(_OUTBOX)
    .values(
        {
            **{name: sa.bindparam(name) for name in ("id", "topic", "type", "key", "locked_by")},
            **{name: sa.cast(sa.bindparam(name, type_=sa.Text), postgresql.JSON) for name in ("payload", "headers")},
            "locked_until": sa.func.clock_timestamp()
            + sa.func.make_interval(0, 0, 0, 0, 0, 0, sa.bindparam("lease_seconds", type_=sa.Double)),
        }
    )
    .returning(_OUTBOX.c.id, _OUTBOX.c.created_at)
)


class HasEvents:
    """A mixin for mapped classes: `record` keeps an event until the session that the entity is in, or gets into, has it."""

    def record(self, event: Recordable) -> None:
        """Have an event published if and only if the transaction commits. Raises OutboxError if it cannot be written.

        A function is called when the event is written, which is after the entity was: its key is known then.
        """
        made = _Made.of(event)
        session = _session_of(self)
        if session is not None and _RELAY in session.info:
            _ledger_of(session).add(made, self)
        else:
            self.__dict__.setdefault(_OWN, []).append(made)

    @property
    def recorded_events(self) -> tuple[Event, ...]:
        """The events that no session has taken over yet, for tests of entities alone."""
        return tuple(each.made() for each in self.__dict__.get(_OWN, ()))


@runtime_checkable
class CollectsEvents(Protocol):
    """An entity with a bookkeeping of its own: it is asked for its events before each flush, commit and savepoint."""

    def collect_events(self) -> Iterable[Event]:
        """The events since the last call; the entity forgets them."""


def install(session_factory: Factory, relay: "OutboxRelay") -> None:
    """Have the sessions that a factory makes from now on publish events by a relay, whether that runs yet or not.

    The relay and the sessions have to be about the same database.
    """
    factory: Any = session_factory
    if isinstance(session_factory, scoped_session | async_scoped_session):
        factory = session_factory.session_factory
    if not isinstance(factory, sessionmaker | async_sessionmaker):
        raise SettingsError(
            f"events are collected from sessions of a sessionmaker or async_sessionmaker, not of a {type(factory).__name__}"
        )
    info = factory.kw.get("info") or {}
    if _RELAY in info:
        raise SettingsError("this session factory has a relay already; install it once, where the factory is made")
    target: Any = factory if isinstance(factory, sessionmaker) else _sync_class(factory)
    for name, hook in _HOOKS.items():
        hooks.listen(target, name, hook)
    factory.configure(info={**info, _RELAY: relay})


def record_event(session: AnySession, event: Recordable) -> None:
    """Have an event published with the transaction of a session, as `HasEvents.record` does, without an entity."""
    found: Any = session() if isinstance(session, scoped_session | async_scoped_session) else session
    target = found.sync_session if isinstance(found, AsyncSession) else found
    if _RELAY not in target.info:
        raise OutboxError(
            "this session has no relay; call `install` of headwater.outbox.sqlalchemy with its factory before it is made"
        )
    _ledger_of(target).add(_Made.of(event), None)


@dataclass(frozen=True, slots=True)
class _Made:
    """An event as it was recorded, and when.

    It is encoded then, so that a bad one fails there, and harms nothing; unless a function is to make it.
    """

    at: int
    event: Recordable
    encoded: EncodedEvent | None

    @classmethod
    def of(cls, event: Recordable) -> "_Made":
        if isinstance(event, Event):
            return cls(time.monotonic_ns(), event, _encode(event))
        if not callable(event):
            raise OutboxError(f"an Event, or a function that makes one, is recorded, and not a {type(event).__name__}")
        return cls(time.monotonic_ns(), event, None)

    def made(self) -> Event:
        event = self.event if isinstance(self.event, Event) else self.event()
        if not isinstance(event, Event):
            raise OutboxError(f"a function that was recorded has to return an Event, and returned a {type(event).__name__}")
        return event

    def ready(self, id_: UUID) -> EncodedEvent:
        """To be written, under an id of ours if it has none of its own."""
        event = self.made()
        return replace(self.encoded or _encode(event), id=event.id or id_)


@dataclass(slots=True, eq=False)
class _Recorded:
    """An event, and the transaction or savepoint that it goes with."""

    made: _Made
    entity: object | None
    level: SessionTransaction | None
    # Whether that was in a savepoint which is not the session's.
    is_in_foreign: bool


@dataclass(slots=True, eq=False)
class _Written:
    """An event that is a row by now, written within a transaction or savepoint."""

    recorded: _Recorded
    leased: "LeasedEvent"
    connection: sa.Connection
    level: SessionTransaction | None


class _Watch:
    """A connection that a session uses in a transaction: what others do on it, of which the session is not told."""

    def __init__(self, connection: sa.Connection, has_events: Callable[[], bool]) -> None:
        self._connection, self._has_events = connection, has_events
        # By a statement of the application: nobody knows when it ends.
        self._has_named_savepoint = False
        # Savepoints that are the session's, and in none that is not; None stands for the transaction itself.
        self._own: list[object] = [None]
        # In which the latest one was made.
        self._around: object = None
        hooks.listen(connection, "before_cursor_execute", self._look)

    def own(self) -> None:
        """What was begun just now is the session's."""
        if self._is_own(self._around):
            self._own.append(self._connection.get_nested_transaction())

    def close(self) -> None:
        # One that somebody else has given to the session goes on.
        if not self._connection.closed:
            hooks.remove(self._connection, "before_cursor_execute", self._look)

    @property
    def is_in_foreign_savepoint(self) -> bool:
        return self._has_named_savepoint or not self._is_own(self._connection.get_nested_transaction())

    def _is_own(self, savepoint: object) -> bool:
        return any(savepoint is each for each in self._own)

    def _look(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        if _SAVEPOINT.match(statement):
            self._around = self._connection.get_nested_transaction()
            self._has_named_savepoint |= not _MADE.match(statement)
        elif _END.match(statement) and self._has_events():
            raise OutboxError(
                "the statement would end the transaction of a session that has events in it; use `commit` and `rollback` of "
                "the session"
            )


class _Ledger:
    """The events of one session, in the order of recording.

    An event belongs to the level, root or savepoint, that it was recorded in, and its row to the one that it was written in.
    A released savepoint hands both to the level around it. One that is undone takes along what was recorded in it, while
    what was recorded before and written in it is to be written again.

    A savepoint that the session has not made is left to the server: an event that was recorded in it is written in it, at
    once or with its entity, and has no lease. One of before waits until the savepoint has ended, unless its entity does not.
    """

    def __init__(self, session: Session, relay: "OutboxRelay") -> None:
        self._session, self._relay = session, relay
        self._unwritten: list[_Recorded] = []
        self._written: list[_Written] = []
        # Whether a commit has passed the last hook of ours that is sure to come, so that nothing may wait any more.
        self._is_committing = self._is_late = False
        # From the commit to the end of the transaction: what comes then is for the next one.
        self._has_committed = False
        self._watches: dict[sa.Connection, _Watch] = {}

    def add(self, made: _Made, entity: object | None, level: SessionTransaction | None = None) -> None:
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
        recorded = _Recorded(made, entity, level, self._is_in_foreign_savepoint)
        self._unwritten.append(recorded)
        if self._is_late:
            self._write_due()
        elif recorded.is_in_foreign and made.encoded is not None and not self._is_to_be_flushed(entity):
            self.write(lambda each: each is recorded)

    def collect(self, level: SessionTransaction | None = None) -> None:
        """Ask the entities that keep their own events for them."""
        for entity in _collecting(self._session):
            for event in entity.collect_events():
                self.add(_Made.of(event), entity, level)

    def write(self, is_wanted: "Callable[[_Recorded], bool]" = lambda _: True) -> None:
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
                    if self._is_joined(each.entity) or self._watches[connection].is_in_foreign_savepoint:
                        one.locked_by = one.lease_seconds = None
                for connection, group in groupby(zip(connections, leased, strict=True), lambda pair: pair[0]):
                    _insert(connection, [each for _, each in group])
            except BaseException:
                self._unwritten[:0] = taken
                raise
            level = _level_of(self._session)
            self._written += map(_Written, taken, leased, connections, [level] * len(taken))

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
            watch = self._watches[connection] = _Watch(connection, lambda: bool(self._unwritten or self._written))
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

    def left(self, entity: object) -> list[_Made]:
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

    def _is_joined(self, entity: object | None) -> bool:
        """Whether the session works on somebody else's connection, who may be in a transaction of their own.

        Nobody tells when that commits, so a lease would only keep relays away from the row.
        """
        return isinstance(self._session.get_bind(**_arguments(entity)), sa.Connection)

    def _move(self, source: SessionTransaction | None, target: SessionTransaction | None) -> None:
        rows: list[_Recorded | _Written] = [*self._unwritten, *self._written, *(each.recorded for each in self._written)]
        for each in rows:
            if each.level is source:
                each.level = target


def _arguments(entity: object | None) -> dict[str, Any]:
    mapped = {} if entity is None else {"mapper": sa.inspect(entity).mapper}
    return {**mapped, "clause": _INSERT}


def _encode(event: Event) -> EncodedEvent:
    """With the trace of whoever records it."""
    with publish_span([event]):
        return encode_events([event], trace_headers(), MAX_PAYLOAD_BYTES)[0]


def _insert(connection: sa.Connection, events: "Sequence[LeasedEvent]") -> None:
    if any(not each.event.is_ascii for each in events) and (encoding := _server_encoding(connection)) != "UTF8":
        raise OutboxError(
            f"the database is encoded in {encoding}, which may lack characters of the event; use one in UTF8, or ASCII only"
        )
    written = {row.id: row.created_at for row in connection.execute(_INSERT, [each.row for each in events])}
    for each in events:
        each.created_at = written[each.event.id]


def _server_encoding(connection: sa.Connection) -> str:
    """As the server has said at the beginning, which psycopg, psycopg2 and asyncpg remember."""
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "get_settings"):
        return str(getattr(driver.get_settings(), "server_encoding", "UTF8"))
    return str(driver.info.parameter_status("server_encoding"))


def _level_of(session: Session) -> SessionTransaction | None:
    return session.get_nested_transaction() or session.get_transaction()


def _boundary(transaction: SessionTransaction | None) -> SessionTransaction | None:
    """The savepoint or root that a transaction is part of; a flush has one of its own, which is neither."""
    while transaction is not None and not transaction.nested and transaction.parent is not None:
        transaction = transaction.parent
    return transaction


def _session_of(entity: object) -> Session | None:
    state = sa.inspect(entity, raiseerr=False)
    return None if state is None else cast("Session | None", state.session)


def _collecting(session: Session) -> Iterator[CollectsEvents]:
    for entity in (*session.new, *session.deleted, *session.identity_map.values()):
        if hasattr(type(entity), "collect_events"):
            yield entity


def _ledger_of(session: Session) -> _Ledger:
    ledger: _Ledger | None = session.info.get(_LEDGER)
    if ledger is None:
        ledger = session.info[_LEDGER] = _Ledger(session, session.info[_RELAY])
    return ledger


def _sync_class(factory: "async_sessionmaker[Any]") -> Any:
    """The class of the sessions below the async ones, made their own, so that no other session is listened to."""
    current = factory.kw.get("sync_session_class") or factory.class_.sync_session_class
    if isinstance(current, sessionmaker):
        return current
    own = type(current.__name__, (current,), {})
    factory.configure(sync_session_class=own)
    return own


def _before_flush(session: Session, *_: object) -> None:
    _told(session, _Ledger.flushing)


def _after_flush(session: Session, *_: object) -> None:
    _told(session, _Ledger.flushed)


def _before_commit(session: Session) -> None:
    _told(session, _Ledger.committing)


def _after_commit(session: Session) -> None:
    _told(session, _Ledger.committed)


def _after_rollback(session: Session) -> None:
    _told(session, _Ledger.rolled_back)


def _after_begin(session: Session, _transaction: SessionTransaction, connection: sa.Connection) -> None:
    _told(session, lambda ledger: ledger.connected(connection))


def _after_create(session: Session, transaction: SessionTransaction) -> None:
    _told(session, lambda ledger: ledger.begun(transaction))


def _after_end(session: Session, transaction: SessionTransaction) -> None:
    _told(session, lambda ledger: ledger.ended(transaction))


def _after_attach(session: Session, entity: object) -> None:
    """What was recorded before the entity had a session."""
    made = vars(entity).pop(_OWN, ()) if _RELAY in session.info else ()
    for each in made:
        _ledger_of(session).add(each, entity)


def _after_leaving(session: Session, entity: object) -> None:
    """An entity that is expunged takes along what is not written; a rollback, when nothing is active, leaves nothing."""
    if _LEDGER in session.info and session.is_active:
        made = session.info[_LEDGER].left(entity)
        if made and isinstance(entity, HasEvents):
            vars(entity).setdefault(_OWN, []).extend(made)


def _told(session: Session, tell: Callable[[_Ledger], None]) -> None:
    # A session that was made before the relay was installed has none.
    if _RELAY in session.info:
        tell(_ledger_of(session))


_HOOKS: Final[Mapping[str, Callable[..., None]]] = {
    "after_attach": _after_attach,
    "before_flush": _before_flush,
    "after_flush": _after_flush,
    "after_flush_postexec": _after_flush,
    "before_commit": _before_commit,
    "after_commit": _after_commit,
    "after_rollback": _after_rollback,
    "after_begin": _after_begin,
    "after_transaction_create": _after_create,
    "after_transaction_end": _after_end,
    "pending_to_transient": _after_leaving,
    "persistent_to_detached": _after_leaving,
}
