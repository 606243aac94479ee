"""What the application does to a transaction by statements of its own, of which psycopg tells nobody: savepoints, its end.

psycopg shows the results of each statement to the connection's cache of prepared statements, which looks for those that make
it invalid. That is the one place where all of them pass; it has no public name.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from psycopg._preparing import Key, Prepare, PrepareManager
from psycopg._queries import PostgresQuery
from psycopg.pq.abc import PGresult

from headwater.outbox.transaction import AnyConnection

_ROLLBACK_TO: Final = re.compile(rb"\brollback\s+(?:(?:work|transaction)\s+)?to\b", re.IGNORECASE)
_ENDS: Final = (b"COMMIT", b"PREPARE TRANSACTION")


class _Seen(NamedTuple):
    """A statement, and its key in the cache if it is new there."""

    text: bytes
    cached: Key | None


class Watch(PrepareManager):
    """The cache of a connection while a transaction is open on it."""

    # Its own; all else is of the cache that it stands for, and stays with that.
    __slots__ = ("has_ended", "saw_savepoint")

    def __init__(self, cache: PrepareManager) -> None:
        self.__dict__ = cache.__dict__
        self.saw_savepoint = self.has_ended = False

    def maybe_add_to_cache(self, query: PostgresQuery, prep: Prepare, name: bytes) -> Key | None:
        # Never None: psycopg tells the results of those statements only that have a key.
        return _Seen(query.query, super().maybe_add_to_cache(query, prep, name))  # type: ignore[return-value]  # opaque

    def validate(self, key: Key | _Seen, prep: Prepare, name: bytes, results: Sequence[PGresult]) -> None:
        cached: Key | None
        if isinstance(key, _Seen):
            self._look(key.text, [result.command_status for result in results])
            cached = key.cached
        else:
            # Of a statement before the transaction, in a pipeline.
            cached = key
        if cached is not None:
            super().validate(cached, prep, name, results)

    def _look(self, text: bytes, tags: Sequence[bytes | None]) -> None:
        if b"SAVEPOINT" in tags:
            self.saw_savepoint = True
        # A rollback to a savepoint says no more than a whole one.
        undone = tags.count(b"ROLLBACK")
        if any(tag in _ENDS for tag in tags) or (undone and undone > len(_ROLLBACK_TO.findall(text))):
            self.has_ended = True


@contextmanager
def watching(connection: AnyConnection) -> Iterator[Watch]:
    """From the beginning of a transaction to its end."""
    cache = connection._prepared
    connection._prepared = watch = Watch(cache)
    try:
        yield watch
    finally:
        connection._prepared = cache
