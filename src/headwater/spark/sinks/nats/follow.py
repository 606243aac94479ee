"""A thread that follows the publication: the schemas of its tables are published, also of those that nobody has written to.

Somebody who calls `_creek.add_table`, as Creek or we make it, notifies; what is altered otherwise is found a little later.
"""

import logging
import random
import secrets
from collections.abc import Callable
from contextlib import closing
from threading import Event, Thread
from typing import Final

import psycopg
from psycopg import sql

from headwater.brokers.nats.publisher import Publisher
from headwater.creek.names import Kind
from headwater.creek.published import published_tables
from headwater.creek.schema import wal_schema
from headwater.errors import HeadwaterError
from headwater.postgres.backoff import Backoff
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.listen import SQL
from headwater.postgres.statements import execute_sync
from headwater.spark.sinks.nats.schemas import Announced, Announcement, Announcer
from headwater.spark.sinks.nats.task import Address

_log = logging.getLogger(__name__)

CHANNEL: Final = "creek"
# How often to look whether to stop, and how often to look at the catalog when nobody has notified.
_STOP_SECONDS, _LOOK_SECONDS = 0.5, 10.0


class PublicationFollower:
    """Follows one publication from `start` to `stop`; `known` gives what is published, and `note` is told what was."""

    def __init__(
        self, address: Address, publication: str, known: Callable[[], Announced], note: Callable[[Announced, int], None]
    ) -> None:
        self._address, self._publication, self._known, self._note = address, publication, known, note
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=f"publication {publication}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        failures, said = 0, ""
        while not self._stopping.is_set():
            try:
                with translated(self._address.source_url), closing(connect_sync(self._address.source_url)) as connection:
                    execute_sync(connection, SQL["listen"].compose(channel=sql.Identifier(CHANNEL)))
                    self._follow(connection)
                failures, said = 0, ""
            except (HeadwaterError, psycopg.Error) as exc:
                failures += 1
                # Whoever reads the source and writes to NATS says so, too; here it is enough to say it once.
                if str(exc) != said:
                    _log.warning(
                        "publication %s is not followed: %s; trying again", self._publication, exc, extra=self._facts
                    )
                said = str(exc)
                self._stopping.wait(Backoff().after(failures, random.random()).total_seconds())

    def _follow(self, connection: Connection) -> None:
        """Look now, whenever somebody notifies, and now and then."""
        while not self._stopping.is_set():
            announce_published(connection, self._address, self._publication, self._known, self._note)
            waited = 0.0
            while waited < _LOOK_SECONDS and not self._stopping.is_set():
                if any(True for _ in connection.notifies(timeout=_STOP_SECONDS, stop_after=1)):
                    break
                waited += _STOP_SECONDS

    @property
    def _facts(self) -> dict[str, object]:
        return {"pipeline": self._address.pipeline, "sink": self._address.sink}


def announce_published(
    connection: Connection,
    address: Address,
    publication: str,
    known: Callable[[], Announced],
    note: Callable[[Announced, int], None],
) -> None:
    """Publish the schemas of all tables of a publication that are not the last on their subjects already."""
    names, tables = address.names, published_tables(connection, publication)
    # Whatever was said before, this is said now: another one may have been the last meanwhile.
    last, occasion = known().last, secrets.token_hex(8)
    wanted = []
    for table in tables:
        relation, schema = table.relation, wal_schema(table.relation, table.types, names.generation)
        subject = names.subject(Kind.SCHEMA, relation.schema, relation.name)
        if last.get(subject) != schema.text:
            wanted.append(Announcement(relation, schema, occasion))
    if wanted:
        with closing(Publisher(address.access)) as publisher:
            announcer = Announcer(names, address.system_identifier, address.source_url, publisher, Announced())
            announcer.announce(wanted)
        _log.debug("schemas published of %d tables", len(wanted), extra={"pipeline": address.pipeline, "sink": address.sink})
        note(announcer.added, len(tables))
    else:
        note(Announced(), len(tables))
