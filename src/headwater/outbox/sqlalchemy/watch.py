"""What is done on the connection of a session without its knowledge."""

import re
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa
from sqlalchemy import event as hooks

from headwater.errors import OutboxError

# Those that SQLAlchemy makes by itself have names of its own.
_SAVEPOINT: Final = re.compile(r"\s*savepoint\b", re.IGNORECASE)
_MADE: Final = re.compile(r"\s*savepoint\s+sa_savepoint_", re.IGNORECASE)
_END: Final = re.compile(r"(?is)\s*(?:(?:rollback|abort)\b(?!.*\bto\b)|(?:commit|end)\b)(?!\s+prepared\b)")


class Watch:
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
