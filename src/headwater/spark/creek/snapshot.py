"""One snapshot on request, from its opening to its end: a thread that reads by Spark and writes to one topic.

The topic has a header, the rows, and `EOF` when all of them are stored; whatever goes wrong, there is no EOF. The join with
the stream is exact: the snapshot is taken as that of a pipeline's own first reading is, and the header tells what it saw.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Event, Thread
from typing import Final

import psycopg
import pyarrow as pa
from pyspark.sql import SparkSession

from headwater import failpoints
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.frames import HEADER_BYTES
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.publisher import Outgoing, Publisher
from headwater.brokers.nats.streams import StreamLimits, stream_info
from headwater.capture.pieces import Readable, describe, unreadable
from headwater.capture.snapshot import OpenSnapshot, Stopped, open_snapshot
from headwater.capture.tables import TableStore
from headwater.creek.framing import packets
from headwater.creek.messages import EOF, SnapshotHeader, SnapshotRequest
from headwater.creek.names import Kind, Names, snapshot_suffix
from headwater.creek.requests import RequestRefused, reason_of
from headwater.creek.schema import AvroSchema, row_schema
from headwater.creek.statements import list_published
from headwater.creek.streams import ensure
from headwater.errors import BrokerError, HeadwaterError
from headwater.model import Lsn
from headwater.postgres.catalog import Table, list_tables, parse_pattern
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.statements import fetch_sync
from headwater.postgres.types import Types
from headwater.spark.creek import statements
from headwater.spark.creek.counts import SnapshotCounts
from headwater.spark.creek.cuts import CUT_PAGES
from headwater.spark.creek.reading import Cores, ReadingCancelled, RowMisfit, TableReading
from headwater.spark.creek.task import Bundle, RowTask, packet_ids, row_ids

_log = logging.getLogger(__name__)

SNAPSHOT_HEADER: Final = "Headwater-Snapshot"
UNTIL_HEADER: Final = "Headwater-Until"
# How many rows a snapshot has, on its EOF: a reader that has another number has not read them all.
ROWS_HEADER: Final = "Headwater-Rows"
# Nobody waits longer for a reply. Whoever has a transaction open for longer than this is named in it.
OPEN_PATIENCE: Final = timedelta(seconds=30)
_XID_EPOCH: Final = 1 << 32
_LOOK_SECONDS: Final = 0.1
# Creek's packets end 7 bytes before the server's limit.
_PACKET_BYTES, _NUMBERS_BYTES = 7, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What the snapshots of one producer have in common.

    `tables` are the names or patterns that may be asked for; none means all of the publication. `widened` has the tables
    that are read under their widened schema in any case.
    """

    spark: SparkSession
    cores: Cores
    url: str = field(repr=False)
    publication: str
    pipeline: str
    state_url: str = field(repr=False)
    tables: tuple[str, ...]
    names: Names
    access: NatsAccess
    limits: StreamLimits
    counts: SnapshotCounts
    widened: set[str] = field(default_factory=set)


class SnapshotRun:
    """A snapshot that is being taken; `on_open`, `on_stored` and `on_end` are called from its thread.

    They tell the topic once the table is seen, that the header is stored, and in the end why it failed, or None.
    """

    def __init__(
        self,
        desk: Desk,
        request: SnapshotRequest,
        on_open: Callable[[str], None],
        on_stored: Callable[[], None],
        on_end: Callable[[str | None], None],
    ) -> None:
        self._desk, self._table = desk, (request.namespace, request.table)
        self._on_open, self._on_stored, self._on_end = on_open, on_stored, on_end
        self._ending, self._reason = Event(), "it was stopped"
        self._is_open = False
        self._waits_for: str | None = None
        self._connection: Connection | None = None
        self._reading: TableReading | None = None
        self._thread = Thread(target=self._run, name=f"snapshot of {self.name}", daemon=True)

    @property
    def name(self) -> str:
        return ".".join(self._table)

    def start(self) -> None:
        self._thread.start()

    def stop(self, reason: str) -> None:
        """Have it end soon, without EOF."""
        if not self._ending.is_set():
            self._reason = reason
            self._ending.set()
        if self._reading is not None:
            self._reading.cancel()
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.cancel_safe(timeout=1)

    def stop_waiting(self) -> None:
        """Give up, if it still waits for other transactions or for a lock."""
        if not self._is_open:
            seconds = OPEN_PATIENCE.total_seconds()
            self.stop(self._waits_for or f"the table could not be seen within {seconds:.0f} s; ask again later")

    def _run(self) -> None:
        reason: str | None = "it ended for a reason that is not known"
        try:
            self._take()
            reason = None
        except (Stopped, ReadingCancelled):
            reason = self._reason
        except RequestRefused as exc:
            reason = reason_of(exc)
        except (HeadwaterError, psycopg.Error) as exc:
            reason = self._reason if self._ending.is_set() else _said(exc)
        except Exception as exc:  # noqa: BLE001 - whatever ends it, its reader is told
            _log.warning("snapshot of %s failed", self.name, exc_info=True)
            reason = _said(exc)
        finally:
            self._on_end(reason)

    def _take(self) -> None:
        desk = self._desk
        with ExitStack() as stack:
            key = self._require_allowed()
            self._wait_until_followed()
            self._ensure_stream()
            publisher = stack.enter_context(closing(Publisher(desk.access)))
            snapshot = open_snapshot(desk.url, [self._table], self._ending, self._tell)
            stack.callback(snapshot.close)
            self._connection = snapshot.connection
            with translated(desk.url):
                topic = self._publish_rows(snapshot, key, publisher)
        self._connection = None
        _log.info("snapshot of %s: complete in %s", self.name, topic)

    def _publish_rows(self, snapshot: OpenSnapshot, key: Sequence[str], publisher: Publisher) -> str:
        readable = self._describe(snapshot)
        suffix = snapshot_suffix(datetime.now().astimezone(), secrets.token_bytes(2))
        topic = self._desk.names.snapshot(*self._table, suffix)
        self._is_open = True
        self._on_open(topic)
        _log.info("snapshot of %s: reading into %s", self.name, topic)
        is_widened = self._is_widened(snapshot, readable)
        writer = TopicWriter(publisher, topic)
        header = self._header(snapshot, readable, key, is_widened=is_widened)
        failpoints.hit("creek.snapshot_opened")
        lines = {SNAPSHOT_HEADER: str(snapshot.read.snapshot), UNTIL_HEADER: str(snapshot.read.until)}
        writer.write("header", header.to_json(), lines)
        self._on_stored()
        task = RowTask(self._desk.url, snapshot.exported, writer.chunk, is_widened)
        self._reading = TableReading(self._desk.spark, self._desk.cores, task, readable.pieces)
        try:
            for bundle in self._reading.bundles():
                self._require_going_on()
                writer.write_rows(bundle)
                self._desk.counts.add_rows(self.name, bundle.rows)
        except RowMisfit:
            self._desk.widened.add(self.name)
            raise
        # Whoever waits to alter the table need not wait for our last message.
        snapshot.close()
        self._require_going_on()
        self._require_kept(topic, writer.packets)
        failpoints.hit("creek.snapshot_published")
        writer.write("eof", EOF, {ROWS_HEADER: str(writer.rows)})
        return topic

    def _require_kept(self, topic: str, packets: int) -> None:
        """Raise BrokerError if the stream does not have the messages of a topic each once, as when it is too small."""
        with closing(Link(self._desk.access)) as link:
            info = stream_info(link, self._desk.names.stream(Kind.SNAPSHOT), topic)
        if info is not None and info.config.get("retention") != "limits":
            raise BrokerError("the stream drops what somebody has read, or nobody wants; set its retention to limits")
        found = 0 if info is None else info.subject_counts.get(topic, 0)
        if found < packets:
            raise BrokerError(f"the stream has kept {found} of {packets} messages; raise its limits, and ask again")
        if found > packets:
            raise BrokerError(f"trouble with the broker has left {found - packets} messages twice; ask again")

    def _require_going_on(self) -> None:
        if self._ending.is_set():
            raise Stopped

    def _require_allowed(self) -> Sequence[str]:
        """The table's primary key; raises RequestRefused if nobody may ask for the table, or it cannot be read."""
        desk = self._desk
        with translated(desk.url), closing(connect_sync(desk.url)) as connection:
            table = next((one for one in list_tables(connection) if (one.schema, one.name) == self._table), None)
            if desk.tables and not (table and any(parse_pattern(pattern).matches(table) for pattern in desk.tables)):
                raise RequestRefused("requests for it are not allowed; `requests_tables` of the producer does not name it")
            reason = unreadable(connection, desk.publication, [self._table]).get(self._table)
            if reason is not None or table is None:
                raise RequestRefused(_first_clause(reason or "it is no table"))
            published = fetch_sync(connection, list_published(desk.publication))
        if self._table not in {(one.schema, one.name) for one in published}:
            raise RequestRefused(_not_sent(table, desk.publication))
        return table.key

    def _wait_until_followed(self) -> None:
        """Of a table that the pipeline is yet to read as a whole, not all changes are in the stream to be joined."""
        with closing(TableStore(self._desk.state_url, self._desk.pipeline)) as store:
            while not self._is_followed(store):
                self._waits_for = "the pipeline does not follow it yet; ask again later"
                if self._ending.wait(_LOOK_SECONDS):
                    raise Stopped

    def _is_followed(self, store: TableStore) -> bool:
        try:
            tables = store.tables()
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return True
        return not tables or any(one.key == self._table and one.state == "streaming" for one in tables)

    def _ensure_stream(self) -> None:
        with closing(Link(self._desk.access)) as link:
            ensure(link, self._desk.names, Kind.SNAPSHOT, self._desk.limits)

    def _describe(self, snapshot: OpenSnapshot) -> Readable:
        failed = snapshot.failed
        if not failed:
            readable, failed = describe(snapshot.connection, self._desk.publication, [self._table], CUT_PAGES)
            if readable:
                return readable[0]
        raise RequestRefused(_first_clause(failed.get(self._table, "it does not exist any more")))

    def _is_widened(self, snapshot: OpenSnapshot, readable: Readable) -> bool:
        """Whether a row needs the widened schema: that is known only when each has been looked at."""
        if self.name in self._desk.widened:
            return True
        misfit = statements.misfit(readable.relation, _types(readable))
        if misfit is None:
            return False
        parts = {piece.pages.part: piece.pages.row_filter for piece in readable.pieces}
        checks = (statements.find_misfit(part, misfit, row_filter) for part, row_filter in parts.items())
        return any(fetch_sync(snapshot.connection, check) for check in checks)

    def _header(self, snapshot: OpenSnapshot, readable: Readable, key: Sequence[str], *, is_widened: bool) -> SnapshotHeader:
        schema = self._schema(readable, key, is_widened=is_widened)
        (rows,) = fetch_sync(snapshot.connection, statements.approximate_rows(readable.oid))
        # Creek takes an id of its own for this; the one that would have been next is as good, and costs the server none.
        tx_id = snapshot.read.snapshot.xmax % _XID_EPOCH
        # Creek's own clients leave out the changes up to here. All of these are in the rows: whoever had committed by then
        # has ended before the snapshot. What they apply once more, the changes behind it put right.
        lsn = Lsn(snapshot.since - 1)
        # Creek publishes the topic empty, and readers fill it in.
        return SnapshotHeader("", schema.name, schema.text, tx_id, lsn, snapshot.read_at, rows)

    def _schema(self, readable: Readable, key: Sequence[str], *, is_widened: bool) -> AvroSchema:
        relation = readable.relation
        if relation.identity == "i":
            # Rows of a snapshot tell the primary key, whatever index names rows in the stream.
            columns = tuple(replace(column, key=column.name in key) for column in relation.columns)
            relation = replace(relation, columns=columns)
        return row_schema(relation, _types(readable), widened=is_widened)

    def _tell(self, word: str) -> None:
        self._waits_for = word
        _log.info("snapshot of %s: %s", self.name, word)


class TopicWriter:
    """The one writer of a snapshot's topic; each message is stored when its call returns. Counts what it has written."""

    def __init__(self, publisher: Publisher, topic: str) -> None:
        self._publisher, self._topic = publisher, topic
        # Headers count against the server's limit, too: here it is an id, which is the topic and some numbers.
        self.chunk = publisher.max_payload - _PACKET_BYTES - HEADER_BYTES - len(topic) - _NUMBERS_BYTES
        self.rows = self.packets = 0

    def write(self, name: str, message: bytes, lines: dict[str, str]) -> None:
        """A message that is no row, with header lines."""
        head = "".join(f"{key}: {value}\r\n" for key, value in lines.items()).encode()
        parts = packets(message, self.chunk - len(head))
        starts = pa.array([number == 0 for number in range(len(parts))])
        headers = pa.array([head] * len(parts), pa.binary())
        ids = packet_ids(f"{self._topic}-{name}", len(parts))
        self._publish(Outgoing(self._topic, ids, pa.array(parts, pa.binary()), headers, starts))

    def write_rows(self, bundle: Bundle) -> None:
        ids = row_ids(self._topic, self.rows + 1, bundle)
        self._publish(Outgoing(self._topic, ids, bundle.packets, None, bundle.starts))
        self.rows += bundle.rows

    def _publish(self, outgoing: Outgoing) -> None:
        for refused in self._publisher.publish(outgoing).refused:
            raise BrokerError(f"a message was refused on {self._topic}: {refused.reason}")
        self.packets += len(outgoing)


def _types(readable: Readable) -> Types:
    return Types.builtin().extended(readable.own_types) if readable.own_types else Types.builtin()


def _not_sent(table: Table, publication: str) -> str:
    if table.is_partition:
        return "it is a partition, whose rows go by the name of the table that it belongs to; ask for that one"
    return f"publication {publication!r} does not send it"


def _first_clause(reason: str) -> str:
    """What follows tells the operator of a pipeline what to do."""
    return reason.partition(";")[0]


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return reason_of(lines[0]) if lines else type(error).__name__
