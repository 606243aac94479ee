"""Schemas by fingerprint, for many who ask at once: from memory, or from the source's database."""

from collections import OrderedDict
from contextlib import suppress
from threading import Lock

import psycopg

from headwater.creek.messages import SchemaMessage
from headwater.creek.store import find_schema
from headwater.postgres.connect import Connection, connect_sync, translated

# What was published under a fingerprint never changes; Creek's clients keep as many.
_KEPT = 256


class SchemaLookup:
    """Keeps the schemas that were asked for, and connections between questions; many threads ask."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = Lock()
        self._known: OrderedDict[str, SchemaMessage] = OrderedDict()
        self._idle: list[Connection] = []

    def find(self, fingerprint: str) -> SchemaMessage | None:
        """The schema, None if the database has none under this fingerprint. Raises as a connection does."""
        with self._lock:
            known = self._known.get(fingerprint)
        if known is not None:
            return known
        schema = self._ask(fingerprint)
        if schema is not None:
            with self._lock:
                self._known[fingerprint] = schema
                if len(self._known) > _KEPT:
                    self._known.popitem(last=False)
        return schema

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _ask(self, fingerprint: str) -> SchemaMessage | None:
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None:
            # One that was left alone may have died meanwhile.
            with suppress(psycopg.OperationalError):
                return self._ask_on(idle, fingerprint)
        with translated(self._url):
            return self._ask_on(connect_sync(self._url), fingerprint)

    def _ask_on(self, connection: Connection, fingerprint: str) -> SchemaMessage | None:
        try:
            found = find_schema(connection, fingerprint)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return found
