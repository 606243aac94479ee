"""What an application calls to have an event published with the transaction of a session."""

from typing import Any, Final, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from headwater.errors import OutboxError
from headwater.outbox.event import Event
from headwater.outbox.sqlalchemy.ledger import has_relay, ledger_of
from headwater.outbox.sqlalchemy.recordable import Made, Recordable

AnySession: TypeAlias = "Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any]"

# Where an entity keeps what it has recorded until it is in a session.
OWN: Final = "_headwater_events"


class HasEvents:
    """A mixin for mapped classes: `record` keeps an event until the session that the entity is in, or gets into, has it."""

    def record(self, event: Recordable) -> None:
        """Have an event published if and only if the transaction commits. Raises OutboxError if it cannot be written.

        A function is called when the event is written, which is after the entity was: its key is known then.
        """
        made = Made.of(event)
        session = _session_of(self)
        if session is not None and has_relay(session):
            ledger_of(session).add(made, self)
        else:
            self.__dict__.setdefault(OWN, []).append(made)

    @property
    def recorded_events(self) -> tuple[Event, ...]:
        """The events that no session has taken over yet, for tests of entities alone."""
        return tuple(each.made() for each in self.__dict__.get(OWN, ()))


def record_event(session: AnySession, event: Recordable) -> None:
    """Have an event published with the transaction of a session, as `HasEvents.record` does, without an entity."""
    found: Any = session() if isinstance(session, scoped_session | async_scoped_session) else session
    target = found.sync_session if isinstance(found, AsyncSession) else found
    if not has_relay(target):
        raise OutboxError(
            "this session has no relay; call `install` of headwater.outbox.sqlalchemy with its factory before it is made"
        )
    ledger_of(target).add(Made.of(event), None)


def _session_of(entity: object) -> Session | None:
    state = sa.inspect(entity, raiseerr=False)
    return None if state is None else cast("Session | None", state.session)
