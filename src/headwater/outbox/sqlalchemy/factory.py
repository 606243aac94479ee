"""A session factory with a relay: what SQLAlchemy tells of its sessions goes to their ledgers."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headwater.errors import SettingsError

# Before what is ours: this module is the first of the package that is loaded.
try:
    import sqlalchemy as sa
    from sqlalchemy import event as hooks
    from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
    from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker
except ImportError as exc:
    raise SettingsError("SQLAlchemy 2 is needed, and is not installed; run `pip install 'headwater[sqlalchemy]'`") from exc

from headwater.outbox.sqlalchemy.ledger import LEDGER, RELAY, Ledger, has_relay, ledger_of
from headwater.outbox.sqlalchemy.record import OWN, HasEvents

if TYPE_CHECKING:
    from headwater.outbox.relay import OutboxRelay

Factory: TypeAlias = "sessionmaker[Any] | scoped_session[Any] | async_sessionmaker[Any] | async_scoped_session[Any]"


def install(session_factory: Factory, relay: "OutboxRelay") -> None:
    """Have the sessions that a factory makes from now on publish events by a relay, whether that runs yet or not.

    Events of sessions that are bound to another database than the relay's are rows there, for a relay of that one.
    """
    factory: Any = session_factory
    if isinstance(session_factory, scoped_session | async_scoped_session):
        factory = session_factory.session_factory
    if not isinstance(factory, sessionmaker | async_sessionmaker):
        raise SettingsError(
            f"events are collected from sessions of a sessionmaker or async_sessionmaker, not of a {type(factory).__name__}"
        )
    info = factory.kw.get("info") or {}
    if RELAY in info:
        raise SettingsError("this session factory has a relay already; install it once, where the factory is made")
    target: Any = factory if isinstance(factory, sessionmaker) else _sync_class(factory)
    for name, hook in _HOOKS.items():
        hooks.listen(target, name, hook)
    factory.configure(info={**info, RELAY: relay})


def _sync_class(factory: "async_sessionmaker[Any]") -> Any:
    """The class of the sessions below the async ones, made their own, so that no other session is listened to."""
    current = factory.kw.get("sync_session_class") or factory.class_.sync_session_class
    if isinstance(current, sessionmaker):
        return current
    own = type(current.__name__, (current,), {})
    factory.configure(sync_session_class=own)
    return own


def _before_flush(session: Session, *_: object) -> None:
    _told(session, Ledger.flushing)


def _after_flush(session: Session, *_: object) -> None:
    _told(session, Ledger.flushed)


def _before_commit(session: Session) -> None:
    _told(session, Ledger.committing)


def _after_commit(session: Session) -> None:
    _told(session, Ledger.committed)


def _after_rollback(session: Session) -> None:
    _told(session, Ledger.rolled_back)


def _after_begin(session: Session, _transaction: SessionTransaction, connection: sa.Connection) -> None:
    _told(session, lambda ledger: ledger.connected(connection))


def _after_create(session: Session, transaction: SessionTransaction) -> None:
    _told(session, lambda ledger: ledger.begun(transaction))


def _after_end(session: Session, transaction: SessionTransaction) -> None:
    _told(session, lambda ledger: ledger.ended(transaction))


def _after_attach(session: Session, entity: object) -> None:
    """What was recorded before the entity had a session."""
    made = vars(entity).pop(OWN, ()) if has_relay(session) else ()
    for each in made:
        ledger_of(session).add(each, entity)


def _after_leaving(session: Session, entity: object) -> None:
    """An entity that is expunged takes along what is not written; a rollback, when nothing is active, leaves nothing."""
    if LEDGER in session.info and session.is_active:
        made = session.info[LEDGER].left(entity)
        if made and isinstance(entity, HasEvents):
            vars(entity).setdefault(OWN, []).extend(made)


def _told(session: Session, tell: Callable[[Ledger], None]) -> None:
    if has_relay(session):
        tell(ledger_of(session))


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
