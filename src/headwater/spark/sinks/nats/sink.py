"""The NATS sink: each lane is encoded and published by a task; what is written is acknowledged by JetStream."""

import base64
import logging
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Final

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.brokers.nats.link import Link
from headwater.brokers.nats.publisher import Publisher
from headwater.brokers.nats.streams import ApiError, call, stream_info
from headwater.creek.framing import FIRST_BYTES
from headwater.creek.messages import SchemaMessage
from headwater.creek.names import Kind, Names, parse_subject
from headwater.creek.store import SCHEMA, prepare_creek
from headwater.creek.streams import ensure
from headwater.errors import BrokerError, HeadwaterError, SettingsError, SinkError, SinkUnavailable
from headwater.model import Lineage, Lsn, Op
from headwater.postgres.catalog import leaves_without_identity, list_tables, read_server, select_tables
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.migrate import Component, pending_migrations
from headwater.postgres.replication.publication import find_publication, require_identity, require_publishable
from headwater.spark.letters import Letter, chunk_of, frame_of, post_letters, prepare_letters
from headwater.spark.letters.making import lineage_of
from headwater.spark.rules import Encoding
from headwater.spark.settings import NatsSinkSettings
from headwater.spark.shape import Shape
from headwater.spark.sinks.nats.follow import PublicationFollower, announce_published
from headwater.spark.sinks.nats.parts import CreekParts, JsonParts, Part
from headwater.spark.sinks.nats.schemas import Announced
from headwater.spark.sinks.nats.task import OUTCOME, Address, Outcome, Writer, WriteTask
from headwater.spark.sinks.ordered import by_table
from headwater.spark.sinks.sink import Span, Written
from headwater.spark.sources.envelope import SCHEMA as ENVELOPE_COLUMNS

_log = logging.getLogger(__name__)

# The lane of rows that hold no changes, but rows of a whole table.
_LOADED_LANE: Final = -1
# What an id ends with: the position of its change, and the number of the packet.
_EVENT_ID: Final = re.compile(rb"Nats-Msg-Id: ?[^\r\n]*\.(?P<lsn>[0-9A-F]+)\.\d+-seq-")


@dataclass(slots=True)
class Figures:
    """What the sink has published since it was made, by operation and table, and how many tables it follows."""

    published: Counter[tuple[str, str]] = field(default_factory=Counter)
    schemas: Counter[str] = field(default_factory=Counter)
    tables: int = 0


class NatsSink:
    """Publishes changes to JetStream, under ids that stay the same when they come again: within a stream's duplicate window,
    two minutes by default, the server drops what it has.

    Rows of whole tables are published as they come. `tables` are names or patterns at the source, and `publication` is what
    it is read through; the rows of a DataFrame `changes` do not say what their positions belong to: `lineage` does.
    """

    def __init__(  # noqa: PLR0913 - who delivers, from where, to where
        self,
        settings: NatsSinkSettings,
        *,
        pipeline: str,
        source_url: str,
        state_url: str,
        tables: Sequence[str],
        publication: str,
        lineage: Lineage | None = None,
    ) -> None:
        self._settings, self._pipeline = settings, pipeline
        self._source_url, self._state_url = source_url, state_url
        self._tables, self._publication, self._lineage = tuple(tables), publication, lineage
        self._known_address: Address | None = None
        self._announced, self._lock = Announced(), Lock()
        self._follower: PublicationFollower | None = None
        self.figures = Figures()

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def names(self) -> Names:
        """What its streams and subjects are called."""
        return self._address.names

    def check(self) -> list[str]:
        """What would fail later, each with its remedy; writes nothing."""
        found = []
        try:
            with closing(Link(self._settings.access)) as link:
                names = Names(self._settings.namespace, "", self._settings.generation)
                for kind in self._kinds:
                    stream_info(link, names.stream(kind))
        except HeadwaterError as exc:
            found.append(str(exc))
        if self._is_creek:
            found += self._check_source()
        return found

    def open(self) -> None:
        prepare_letters(self._state_url)
        with self._translated():
            address = self._address
            with closing(Link(self._settings.access)) as link:
                self._ensure_streams(link, address.names)
                if self._is_creek:
                    self._open_creek(link, address)

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        self._require_shape(shape)
        attempt = "" if span.loading is None else span.loading.attempt
        with self._lock:
            announced = self._announced
        task = WriteTask(self._address, shape, self._lineage, announced, attempt, span.start.commit_lsn)
        rows = batch.select("lane", "frame") if shape is Shape.WIRE else by_table(batch)
        outcome = self._run(rows, task)
        if outcome.large:
            loaded = rows.filter(f"lane = {_LOADED_LANE}").coalesce(1)
            outcome += self._run(loaded, replace(task, only_large=True))
        post_letters(self._state_url, outcome.letters)
        self.figures.published.update(outcome.ops)
        return outcome.written

    def replay(self, letter: Letter) -> None:
        """Publish the change of a dead letter, under the id that it would have had."""
        with self._translated():
            address = self._address
            self._require_newest(letter, address)
            parts, refused = self._parts_of(letter, address)
            if refused:
                raise SinkError(self.name, f"the row still cannot be published: {refused[0].reason}")
            with closing(Publisher(self._settings.access)) as publisher:
                writer = Writer(address, publisher, self._announced)
                for part in parts:
                    total = writer.write(part)
                    if part.is_read and total.large:
                        total += writer.write(part, only_large=True)
                    for again in total.letters:
                        raise SinkError(self.name, f"the row still cannot be published: {again.reason}")

    def _require_newest(self, letter: Letter, address: Address) -> None:
        """Refuse a change that another one of its table has passed: behind that, it would bring back what was before."""
        subject = address.names.subject(Kind.WAL, letter.schema, letter.table)
        with closing(Link(self._settings.access)) as link:
            last = _last_lsn(link, address.names.stream(Kind.WAL), subject)
        if last is not None and last > letter.position.commit_lsn:
            raise SinkError(
                self.name,
                f"later changes of {letter.schema}.{letter.table} are in the stream, and behind them this one would bring "
                "back what was before; have consumers take a snapshot of the table, and drop the letter",
            )

    def close(self) -> None:
        if self._follower is not None:
            self._follower.stop()
            self._follower = None

    @property
    def _is_creek(self) -> bool:
        return self._settings.encoding is Encoding.CREEK

    @property
    def _kinds(self) -> tuple[Kind, ...]:
        # There are neither schemas nor snapshots of JSON.
        return tuple(Kind) if self._is_creek else (Kind.WAL,)

    @property
    def _address(self) -> Address:
        """Where to publish; asks the source what it is called, if nobody has said so."""
        if self._known_address is None:
            settings, lineage = self._settings, self._lineage
            if lineage is None:
                with translated(self._source_url), closing(connect_sync(self._source_url)) as connection:
                    server = read_server(connection)
                database, system = server.database, server.system_identifier
            else:
                database, system = lineage.database, lineage.system_identifier
            self._known_address = Address(
                self._pipeline,
                self.name,
                settings.access,
                Names(settings.namespace, database, settings.generation),
                settings.encoding,
                settings.cloudevents,
                system,
                self._source_url,
            )
        return self._known_address

    def _ensure_streams(self, link: Link, names: Names) -> None:
        for kind in self._kinds:
            ensure(link, names, kind, self._settings.limits)

    def _open_creek(self, link: Link, address: Address) -> None:
        """Make Creek's own objects, and publish the schemas of all tables, before there is any message."""
        with translated(self._source_url), closing(connect_sync(self._source_url)) as connection:
            self._require_identities(connection)
            prepare_creek(connection)
            self._announced = _last_schemas(link, address.names)
            announce_published(connection, address, self._publication, self._current, self._note)
        self._follower = PublicationFollower(address, self._publication, self._current, self._note)
        self._follower.start()

    def _require_identities(self, connection: Any) -> None:
        """Refuse a table without key before the source publishes it, and its application's updates begin to fail."""
        tables = list_tables(connection)
        for table in select_tables(tables, self._tables):
            require_publishable(table)
            require_identity(table, tables)
        published = find_publication(connection, self._publication)
        named = frozenset[int]() if published is None else published.tables
        for table in tables:
            if table.oid in named and leaves_without_identity(tables, table):
                said = "table %s is published without a replica identity, so its updates and deletes fail; add a primary key"
                _log.warning(said, table, extra={"pipeline": self._pipeline, "sink": self.name})

    def _check_source(self) -> Iterator[str]:
        """Whether Creek's own objects are there, or can be made."""
        try:
            with translated(self._source_url), closing(connect_sync(self._source_url)) as connection:
                server = read_server(connection)
                if pending_migrations(connection, Component.of("headwater.creek", schema=SCHEMA)) and not server.can_create:
                    yield (
                        f"role {server.user} may not create schema {SCHEMA} in database {server.database}; have its owner "
                        f'run `create schema {SCHEMA} authorization "{server.user}"`'
                    )
        except psycopg.errors.InsufficientPrivilege as exc:
            yield f"schema {SCHEMA} of the source refuses: {exc.diag.message_primary}; grant usage on it to this role"
        except HeadwaterError as exc:
            yield str(exc)

    def _require_shape(self, shape: Shape) -> None:
        if shape is Shape.TABLE or (shape is Shape.ENVELOPE and self._is_creek):
            raise SettingsError(
                f"sink {self.name!r} with encoding {self._settings.encoding} does not take changes of shape {shape}; leave "
                "the transform out, or set its encoding to json"
            )

    def _run(self, rows: DataFrame, task: WriteTask) -> Outcome:
        outcomes = (pickle.loads(row["outcome"]) for row in rows.mapInArrow(task, OUTCOME).collect())
        total = sum(outcomes, Outcome())
        self._note(total.announced, None)
        total.require_success(self.name)
        return total

    def _parts_of(self, letter: Letter, address: Address) -> tuple[list[Part], list[Letter]]:
        """The letter's row as messages, and why it cannot be one."""
        if letter.envelope is not None:
            row = {**letter.envelope, "committed_at": letter.committed_at}
            rows = pa.RecordBatch.from_pylist([row], ENVELOPE_COLUMNS)
            parts, refused = JsonParts(address.whose).of_envelopes(rows, lineage_of(letter.event_id), "")
            return [_under(part, letter.event_id) for part in parts], refused
        found = chunk_of(letter) if letter.op == Op.READ else frame_of(letter)
        encoder = CreekParts(address.whose, letter.position.commit_lsn) if self._is_creek else JsonParts(address.whose)
        parts, refused = encoder.of(found)
        return [_under(part, letter.event_id) for part in parts], refused

    def _current(self) -> Announced:
        with self._lock:
            return self._announced

    def _note(self, announced: Announced, tables: int | None) -> None:
        names = self.names
        with self._lock:
            self._announced += announced
            for subject in announced.last:
                parts = parse_subject(subject, names.root, names.generation)
                self.figures.schemas[f"{parts.schema}.{parts.table}"] += 1
            if tables is not None:
                self.figures.tables = tables

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """What NATS refuses is said of this sink, and tried again if that may help."""
        try:
            yield
        except BrokerError as exc:
            raise (SinkUnavailable if exc.retryable else SinkError)(self.name, str(exc)) from exc


def _under(part: Part, event_id: str) -> Part:
    return replace(part, messages=replace(part.messages, ids=pa.array([event_id], pa.string())))


def _last_lsn(link: Link, stream: str, subject: str) -> Lsn | None:
    """The commit of the last change on a subject, by its id."""
    try:
        answer = call(link, f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    except ApiError:
        return None
    found = _EVENT_ID.search(base64.b64decode(answer["message"].get("hdrs", "")))
    return None if found is None else Lsn(int(found["lsn"], 16))


def _last_schemas(link: Link, names: Names) -> Announced:
    """The schemas that are the last on their subjects, so that no start of a producer adds them again."""
    stream = names.stream(Kind.SCHEMA)
    info = stream_info(link, stream, names.stream_subject(Kind.SCHEMA))
    found = {} if info is None else {subject: _last_schema(link, stream, subject) for subject in info.subject_counts}
    return Announced({subject: text for subject, text in found.items() if text is not None})


def _last_schema(link: Link, stream: str, subject: str) -> str | None:
    try:
        answer = call(link, f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        body = base64.b64decode(answer["message"].get("data", ""))
        return SchemaMessage.from_json(body[FIRST_BYTES:]).schema
    except (ApiError, ValueError):
        # It is gone meanwhile, or somebody else's.
        return None
