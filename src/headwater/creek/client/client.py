"""The client: tables of any database of a namespace, over one connection."""

import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.connection import connect as connect_nats
from headwater.creek.client.broker import Broker
from headwater.creek.client.feed import Feed, Start
from headwater.creek.client.messages import Messages
from headwater.creek.client.schemas import Schemas
from headwater.creek.client.snapshots import SnapshotInfo, SnapshotReader, parse_infos, request_snapshot
from headwater.creek.client.wal import Until, WalStream
from headwater.creek.messages import SchemaMessage
from headwater.creek.names import Generation, Kind, Names, parse_subject
from headwater.errors import SettingsError, SnapshotFailed
from headwater.model import Lsn

_log = logging.getLogger(__name__)

NAMESPACE: Final = "CREEK"
# Nothing of a snapshot for so long, and it is given up.
_PATIENCE = timedelta(seconds=60)
_RECONNECT_SECONDS = 0.25
_TABLE = re.compile(r'(?:"((?:[^"]|"")+)"|([^".]+))\.(?:"((?:[^"]|"")+)"|([^"]+))')


@asynccontextmanager
async def connect(
    server: str | NatsAccess, namespace: str = NAMESPACE, generation: Generation | str = Generation.ONE
) -> AsyncIterator["Client"]:
    """A client of the producers that publish in a namespace; the connection ends with the block.

    It comes back by itself, however long the server is away. Requests to producers have the time that `NatsAccess.timeout`
    says. Raises `BrokerUnavailable` or `BrokerError` if the server cannot be reached or refuses.
    """
    access = NatsAccess(url=server) if isinstance(server, str) else server
    if str(generation) not in list(Generation):
        raise SettingsError(f"there is no generation {generation} of Creek's wire; it is 1 or 2")
    names = Names(namespace, "", Generation(str(generation)))
    connection = await connect_nats(
        access, allow_reconnect=True, max_reconnect_attempts=-1, reconnect_time_wait=_RECONNECT_SECONDS, error_cb=_note
    )
    broker = Broker(connection, access)
    try:
        yield Client(names, broker)
    finally:
        await broker.close()


async def _note(error: Exception) -> None:
    # The driver tells of every try to reconnect; whoever asks something meanwhile gets an error of ours.
    _log.debug("NATS: %s", error)


class Client:
    """Made by `connect`. A table is named `schema.table`; names that have dots in them are quoted as in SQL."""

    def __init__(self, names: Names, broker: Broker) -> None:
        self._names, self._broker = names, broker
        self._schemas = Schemas(broker)

    def stream_wal(self, database: str, table: str, *, after: int | None = None) -> WalStream:
        """All changes of a table that are in the stream, and those to come; or those behind a message's `position`.

        No message is at 0: that is where a stream is of which nothing was read, so behind it is all that there is.
        """
        if after is not None and after < 0:
            raise SettingsError(f"a position in a stream is at least 0, not {after}")
        return self._stream(database, table, Start(after + 1) if after else Start())

    def stream_wal_from(
        self, database: str, table: str, time: datetime, lsn: Lsn | str, ordinal: int | None = None
    ) -> WalStream:
        """The changes that were stored from a time on, without those that come first and are not beyond an LSN.

        That is Creek's rule. All changes of a transaction have one LSN, so it leaves out the rest of one that was read in
        part; with the `ordinal` of its last change that was read, only what was read is left out. Better still, go on
        behind a position with `stream_wal`. The time is that of the server's clock: take one that is early enough.
        """
        moment = time.replace(tzinfo=UTC) if time.tzinfo is None else time
        until = Until(Lsn.parse(lsn) if isinstance(lsn, str) else Lsn(lsn), ordinal)
        return self._stream(database, table, Start(time=moment), until)

    async def snapshot(self, database: str, table: str, *, patience: timedelta = _PATIENCE) -> SnapshotReader:
        """Have a producer take a snapshot, and read it; raises `SnapshotFailed` with the reason if it refuses.

        The rows end with `BrokerUnavailable` if nothing more of them comes within `patience`.
        """
        schema, name = _parse_table(table)
        names = self._of(database)
        topic = await request_snapshot(self._broker, names, schema, name)
        return await self._reader(names, topic, patience)

    async def get_snapshot(self, topic: str, *, patience: timedelta = _PATIENCE) -> SnapshotReader:
        """Read a snapshot that was taken before, or is being taken."""
        try:
            subject = parse_subject(topic, self._names.root, self._names.generation)
        except ValueError as error:
            raise SettingsError(f"{topic!r} is no topic of a snapshot; see list_snapshots") from error
        if subject.kind is not Kind.SNAPSHOT:
            raise SettingsError(f"{topic!r} is no topic of a snapshot; see list_snapshots")
        names = self._of(subject.database)
        if not await self._broker.subject_counts(names.stream(Kind.SNAPSHOT), topic):
            raise SnapshotFailed(f"no messages on {topic}; see list_snapshots for those that there are")
        return await self._reader(names, topic, patience)

    async def list_snapshots(self, database: str, table: str) -> list[SnapshotInfo]:
        """The snapshots of a table that are in the stream, oldest first."""
        names = self._of(database)
        subjects = names.snapshot(*_parse_table(table), "*")
        return parse_infos(await self._broker.subject_counts(names.stream(Kind.SNAPSHOT), subjects))

    async def get_schema(self, fingerprint: str, *, database: str | None = None) -> SchemaMessage:
        """The schema with a fingerprint, from a producer; generation 2 has to know of which database."""
        if database is None and self._names.generation is Generation.TWO:
            raise SettingsError("generation 2 asks each database's producer for its schemas; give database=...")
        return await self._schemas.by_fingerprint(self._of(database or ""), fingerprint)

    async def get_last_schema(self, database: str, table: str) -> SchemaMessage:
        """The schema that was published last for a table; raises `NoSchema` if none was."""
        return await self._schemas.last(self._of(database), *_parse_table(table))

    def _of(self, database: str) -> Names:
        return replace(self._names, database=database)

    def _stream(self, database: str, table: str, start: Start, until: Until | None = None) -> WalStream:
        names, (schema, name) = self._of(database), _parse_table(table)
        feed = Feed(self._broker, names.stream(Kind.WAL), names.subject(Kind.WAL, schema, name), start)
        find = partial(self._schemas.decoder, names, schema, name)
        return WalStream(Messages(feed), find, after=(start.sequence or 1) - 1, until=until)

    async def _reader(self, names: Names, topic: str, patience: timedelta) -> SnapshotReader:
        feed = Feed(self._broker, names.stream(Kind.SNAPSHOT), topic, Start())
        return await SnapshotReader.begin(Messages(feed), topic, patience.total_seconds())


def _parse_table(text: str) -> tuple[str, str]:
    found = _TABLE.fullmatch(text)
    if found is None:
        raise SettingsError(f"{text!r} is no table; write schema.table, and quote names that have dots or quotes in them")
    quoted_schema, schema, quoted_table, table = found.groups()
    return schema or quoted_schema.replace('""', '"'), table or quoted_table.replace('""', '"')
