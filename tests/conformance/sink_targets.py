"""The sinks under test, each with a target to look into: what is in it now, and what some changes should have left there."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from psycopg import sql
from psycopg.rows import dict_row

from headwater.brokers.nats.access import NatsAccess
from headwater.creek.decode import WalMessage
from headwater.creek.names import Names
from headwater.model import UNCHANGED, Change, Lsn, Position, Row
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.spark.settings import (
    ConsoleSinkSettings,
    Encoding,
    NatsSinkSettings,
    NoopSinkSettings,
    ParquetSinkSettings,
    PostgresSinkSettings,
)
from headwater.spark.sinks import Sink
from headwater.spark.sinks.console import ConsoleSink
from headwater.spark.sinks.nats import NatsSink
from headwater.spark.sinks.noop import NoopSink
from headwater.spark.sinks.parquet import ParquetSink
from headwater.spark.sinks.postgres import PostgresSink
from tests.support.brokers.nats_streams import Stored, fresh_namespace, json_changes, unchanged_of, wal

PIPELINE = "shop"
# The tables that sources have, and their keys.
KEYS = {"item": ("id",), "pair": ("a", "b")}

# A change as a target that keeps all of them tells it: where, what, the row as far as it is known, and what was not sent.
Entry = tuple[Position, str, str, tuple[tuple[str, str], ...], tuple[str, ...]]


class Target(ABC):
    """A sink and where it delivers to. `repeats`: it cannot tell what it has; `looks_inside`: it notices bad rows; `waits`:
    rows of a whole table are seen when all of them are there; `keeps_last`: it has the last version of a row, and no other;
    `takes_envelopes`: it takes what came through a transform; `shows_parts`: what came before a failure is there.
    """

    repeats = False
    looks_inside = True
    waits = True
    keeps_last = False
    takes_envelopes = True
    shows_parts = False

    @abstractmethod
    def build(self) -> Sink:
        """The sink of a new run."""

    @abstractmethod
    def content(self) -> object:
        """What is in the target now."""

    @abstractmethod
    def expected(self, changes: Iterable[Change]) -> object:
        """What it should be after these changes in this order."""

    def aside(self) -> list[str]:
        """What is kept where nobody looks, by name."""
        return []


class LogTarget(Target):
    """One that keeps every change, and every row that was read."""

    def expected(self, changes: Iterable[Change]) -> object:
        return sorted(_entry(change) for change in changes)


class ParquetTarget(LogTarget):
    def __init__(self, path: Path, state_url: str, name: str = "files") -> None:
        self.path, self._state_url, self._name = path, state_url, name

    def build(self) -> Sink:
        settings = ParquetSinkSettings(name=self._name, path=str(self.path))
        return ParquetSink(settings, pipeline=PIPELINE, state_url=self._state_url)

    def content(self) -> object:
        files = (file for file in self.path.glob("*/*/*") if file.name[0] not in "._")
        return sorted(self._entry(file, row) for file in files for row in pq.ParquetFile(file).read().to_pylist())

    def aside(self) -> list[str]:
        return [file.name for file in self.path.glob("*/*/.*")]

    def _entry(self, file: Path, row: dict[str, Any]) -> Entry:
        if "op" in row:
            return _envelope_entry(row, Lsn(row["commit_lsn"]))
        values = {name: value for name, value in row.items() if name[0] != "_"}
        position = Position(Lsn(row["_commit_lsn"]), row["_ordinal"])
        table = file.parent.parent.name.partition(".")[2]
        return position, row["_op"], table, _known(values), tuple(row["_unchanged"])


class ConsoleTarget(LogTarget):
    repeats = True
    waits = False

    def __init__(self, read_output: Callable[[], str], state_url: str) -> None:
        self._read_output, self._state_url, self._lines = read_output, state_url, list[str]()

    def build(self) -> Sink:
        return ConsoleSink(ConsoleSinkSettings(name="console"), pipeline=PIPELINE, state_url=self._state_url)

    def content(self) -> object:
        self._lines += self._read_output().splitlines()
        rows = map(json.loads, self._lines)
        return sorted(_envelope_entry(row, Lsn.parse(row["commit_lsn"])) for row in rows)


class NatsTarget(LogTarget):
    """Streams on a server that knows what it has by its id."""

    waits = False
    shows_parts = True

    def __init__(self, source_url: str, access: NatsAccess, state_url: str, encoding: Encoding) -> None:
        self._source_url, self._access, self._state_url = source_url, access, state_url
        self._encoding, self.takes_envelopes = encoding, encoding is Encoding.JSON
        self._namespace = fresh_namespace()

    def build(self) -> Sink:
        is_json = self._encoding is Encoding.JSON
        settings = NatsSinkSettings(
            name="nats", access=self._access, namespace=self._namespace, encoding=self._encoding, cloudevents=is_json
        )
        urls = {"source_url": self._source_url, "state_url": self._state_url}
        with closing(ReplicationConnection(self._source_url)) as replication:
            lineage = replication.lineage("hw")
        return NatsSink(settings, pipeline=PIPELINE, **urls, tables=tuple(KEYS), publication="pub", lineage=lineage)

    def content(self) -> object:
        with closing(connect_sync(self._source_url)) as connection:
            names = Names(self._namespace, connection.info.dbname)
        if self._encoding is Encoding.JSON:
            return sorted(_json_entry(one, body) for one, body in json_changes(self._access, names))
        return sorted(_wal_entry(message) for message in wal(self._access, names))


class NoopTarget(Target):
    repeats = True
    waits = False
    looks_inside = False

    def build(self) -> Sink:
        return NoopSink(NoopSinkSettings(name="nowhere"))

    def content(self) -> object:
        return None

    def expected(self, changes: Iterable[Change]) -> object:
        return None


class PostgresTarget(Target):
    """Tables of another database; of each row only the last version is left."""

    keeps_last = True

    def __init__(self, source_url: str, url: str, state_url: str, tables: Mapping[str, Sequence[str]]) -> None:
        """`tables` are names and keys."""
        self._source_url, self._url, self._state_url, self._tables = source_url, url, state_url, tables

    def build(self) -> Sink:
        settings = PostgresSinkSettings(name="replica", url=self._url)
        return PostgresSink(
            settings,
            pipeline=PIPELINE,
            source_url=self._source_url,
            state_url=self._state_url,
            tables=tuple(self._tables),
        )

    def content(self) -> object:
        return {table: rows_of(self._url, table) for table in self._tables}

    def expected(self, changes: Iterable[Change]) -> object:
        tables: dict[str, dict[object, dict[str, Any]]] = {table: {} for table in self._tables}
        for change in changes:
            self._apply(tables[change.table], change)
        return {table: sorted((dict(_known(row)) for row in rows.values()), key=str) for table, rows in tables.items()}

    def aside(self) -> list[str]:
        query = "select relname::text from pg_class where relnamespace = 'headwater'::regnamespace and relname like 'aside%'"
        with closing(connect_sync(self._url)) as connection:
            return [name for (name,) in connection.execute(query).fetchall()]

    def _apply(self, rows: dict[object, dict[str, Any]], change: Change) -> None:
        if change.op == "t":
            rows.clear()
            return
        old = rows.pop(self._key(change.table, change.key or {}), {})
        if change.after is not None:
            new = {name: None if value is None else json.loads(str(value)) for name, value in sent(change.after).items()}
            rows[self._key(change.table, change.after)] = {**old, **new}

    def _key(self, table: str, row: Row) -> object:
        return tuple(row[name] for name in self._tables[table])


def sent(row: Row) -> dict[str, object]:
    return {name: value for name, value in row.items() if value is not UNCHANGED}


def rows_of(url: str, table: str) -> list[dict[str, str]]:
    """A table's rows as texts, without what is NULL."""
    with closing(connect_sync(url)) as connection:
        cursor = connection.cursor(row_factory=dict_row)
        found = cursor.execute(sql.SQL("select * from {}").format(sql.Identifier(table))).fetchall()
    return sorted((dict(_known(row)) for row in found), key=str)


def _entry(change: Change) -> Entry:
    row = change.before if change.after is None else change.after
    values = {name: json.loads(str(value)) for name, value in (row or {}).items() if value not in (None, UNCHANGED)}
    return change.position, str(change.op), change.table, _known(values), change.unchanged


def _envelope_entry(row: dict[str, Any], lsn: Lsn) -> Entry:
    values = row["before"] if row["after"] is None else row["after"]
    values = json.loads(values) if isinstance(values, str) else values
    return Position(lsn, row["ordinal"]), row["op"], row["table"], _known(values or {}), tuple(row["unchanged"])


def _wal_entry(message: WalMessage) -> Entry:
    values = message.before if message.after is None else message.after
    place, table = _position(message.id or ""), message.source.table
    return place, str(message.op), table, _known(values or {}), message.unchanged


def _json_entry(message: Stored, body: dict[str, Any]) -> Entry:
    values = body["before"] if body["after"] is None else body["after"]
    op = message.headers["ce-type"].rpartition(".")[2]
    source = body["source"]
    place = Position(Lsn(source["lsn"]), source["ordinal"])
    return place, op, source["table"], _known(values or {}), unchanged_of(message)


def _position(event_id: str) -> Position:
    """Where an event stands; that of a row which was read has the number of the row at its end."""
    _, lsn, last = event_id.rsplit(".", 2)
    return Position(Lsn(int(lsn, 16)), int(last.rpartition("_")[2]))


def _known(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(value)) for name, value in row.items() if value is not None))
