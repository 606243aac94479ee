"""Domain events of SQLAlchemy sessions: written when a session flushes, and handed to the relay when it has committed.

`install` prepares a session factory, sync or async. From then on events come from entities (`HasEvents`, or whatever has a
method `collect_events`) and from `record_event`. They are rows of the session's own transaction: what is rolled back, as a
whole or to a savepoint, is neither written nor published, and is on no entity any more. Nobody tells a session what becomes
of savepoints that it has not made; what is written in such a one is not handed over, and relays find it in the table.
"""

from headwater.outbox.sqlalchemy.factory import install
from headwater.outbox.sqlalchemy.record import HasEvents, record_event
from headwater.outbox.sqlalchemy.recordable import CollectsEvents

__all__ = ["CollectsEvents", "HasEvents", "install", "record_event"]
