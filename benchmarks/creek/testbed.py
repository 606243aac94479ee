"""What the parts share: the servers, the table, streams filled as a producer does it, and what a stream has stored.

Whatever is counted is what a stream says that it holds. Times of messages are those at which the server stored them; it is
on this machine, and has its clock.
"""

import base64
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.creek import statements
from benchmarks.report import Output
from benchmarks.wal_bench import Bench, Load, whole_batches
from headwater.brokers.nats import Link, NatsAccess, Outgoing, Publisher, ensure_stream, stream_info
from headwater.brokers.nats.streams import ApiError, call, parse_time
from headwater.creek.encode import Encoded, encode_batch
from headwater.creek.framing import frame_all
from headwater.creek.messages import SchemaMessage
from headwater.creek.names import Kind, Names
from headwater.embedded import EmbeddedNats, EmbeddedPostgres, NatsSettings, PostgresSettings
from headwater.model import Lineage, Lsn
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication import Batch
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.postgres.statements import execute_sync
from headwater.postgres.types import Types
from headwater.spark.sinks.nats.identity import event_ids

# That of the superuser, in an embedded server.
DATABASE: Final = "postgres"
SCHEMA, NAME = "public", "orders"
TABLE: Final = f"{SCHEMA}.{NAME}"
# What the batches of `benchmarks.wal_bench` are read through, too.
PUBLICATION: Final = "bench"
# JetStream's own number for a message that was not found.
_NO_MESSAGE: Final = 10037
# Room for all turns of a part.
_NATS: Final = NatsSettings(max_file_bytes=16 * 1024**3)


@dataclass(frozen=True, slots=True)
class Testbed:
    """A source with the table, empty at first, and a NATS server; each turn gets names that were not used before."""

    bench: Bench
    access: NatsAccess
    turns: "count[int]"

    def fresh_names(self) -> Names:
        # All of one length, so that messages are.
        return Names(f"TURN{next(self.turns):04}", DATABASE)

    def link(self) -> Link:
        return Link(self.access)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn took: from the first read of what it reads, and from its start."""

    seconds: float
    seconds_with_start: float


def rate_of(turns: Sequence[Turn], what: str, count: int, output: Output) -> int:
    """How many in a second; what the turns took is put among the figures."""
    seconds = statistics.median(turn.seconds for turn in turns)
    with_start = statistics.median(turn.seconds_with_start for turn in turns)
    output.figures[f"{what}_count"] = count
    output.figures[f"{what}_seconds"] = round(seconds, 2)
    output.figures[f"{what}_seconds_with_start"] = round(with_start, 2)
    return round(count / seconds)


@contextmanager
def start_testbed(output: Output, config: dict[str, str]) -> Iterator[Testbed]:
    """The servers, with the table made and published."""
    with (
        EmbeddedPostgres(PostgresSettings(config=config)) as server,
        EmbeddedNats(_NATS) as nats,
        connect_sync(server.url) as connection,
    ):
        execute_sync(connection, statements.create_objects())
        execute_sync(connection, statements.publish_orders(PUBLICATION))
        bench = Bench(server, connection, output.console, output.figures)
        yield Testbed(bench, NatsAccess(url=nats.url), count(1))


def write_orders(bench: Bench, rows: int) -> None:
    """New rows, in transactions of 100."""
    execute_sync(bench.connection, statements.write_orders(rows))


def subject_of(names: Names) -> str:
    return names.subject(Kind.WAL, SCHEMA, NAME)


def count_stored(link: Link, stream: str, subject: str) -> int:
    """How many messages of a subject a stream has."""
    info = stream_info(link, stream, subject)
    return 0 if info is None else info.subject_counts.get(subject, 0)


@dataclass(frozen=True, slots=True)
class Stored:
    """The last message of a subject, and when it was stored, in seconds of Unix time."""

    payload: bytes
    at: float


def last_stored(link: Link, stream: str, subject: str) -> Stored | None:
    try:
        message: dict[str, Any] = call(link, f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})["message"]
    except ApiError as error:
        if error.code == _NO_MESSAGE:
            return None
        raise
    return Stored(base64.b64decode(message.get("data", "")), parse_time(message["time"]).timestamp())


def require_stored(link: Link, names: Names, wanted: int) -> float:
    """Raises unless the stream of changes has so many; when the last of them was stored, in seconds of Unix time."""
    stream, subject = names.stream(Kind.WAL), subject_of(names)
    found, last = count_stored(link, stream, subject), last_stored(link, stream, subject)
    assert found == wanted and last is not None, f"the stream has {found} of {wanted} messages"
    return last.at


def drop_streams(link: Link, names: Names) -> None:
    """Make room; what a turn has stored was counted."""
    for kind in Kind:
        if stream_info(link, names.stream(kind)) is not None:
            call(link, f"STREAM.DELETE.{names.stream(kind)}", {})


def unix_time(at: float) -> float:
    """A time of `perf_counter` by the clock on the wall."""
    return time.time() - time.perf_counter() + at


def encode_all(batches: Iterable[Batch], names: Names) -> Iterator[Encoded]:
    """The changes of batches that follow one another, table by table."""
    previous, types = Lsn(0), Types.builtin()
    for batch in batches:
        sent_at = time.time_ns() // 1000
        encoded = encode_batch(
            batch, types, database=names.database, generation=names.generation, sent_at=sent_at, previous=previous
        )
        previous = Lsn(max((int(one.places.commit_lsn[-1]) for one in encoded), default=previous))
        yield from encoded


def fill_stream(testbed: Testbed, load: Load) -> Names:
    """Store what a slot has as a producer does, under names of its own, and the schema with it."""
    names, url = testbed.fresh_names(), testbed.bench.server.url
    with (
        testbed.bench.console.status(f"storing {load.rows:,} messages"),
        testbed.bench.copied(load) as slot,
        closing(testbed.link()) as link,
        closing(Publisher(testbed.access)) as publisher,
    ):
        with ReplicationConnection(url) as replication:
            lineage = replication.lineage(slot)
        make_streams(link, names)
        for encoded in encode_all(whole_batches(url, replace(load, slot=slot)), names):
            publisher.publish(schema_of(encoded, names))
            publisher.publish(changes_of(encoded, names, lineage))
        require_stored(link, names, load.rows)
    return names


def make_streams(link: Link, names: Names) -> None:
    for kind in Kind:
        ensure_stream(link, names.stream(kind), [names.stream_subject(kind)], "a benchmark's")


def changes_of(encoded: Encoded, names: Names, lineage: Lineage) -> Outgoing:
    ids = event_ids(lineage, encoded.places.commit_lsn, encoded.places.ordinal)
    return Outgoing(subject_of(names), pc.binary_join_element_wise(ids, "-seq-0", ""), frame_all(encoded.payloads))


def schema_of(encoded: Encoded, names: Names) -> Outgoing:
    """The same id each time, so that it is stored once."""
    schema = encoded.schema
    body = SchemaMessage(schema.name, schema.text, encoded.relation.table, datetime.now(UTC)).to_json()
    payload = frame_all(pa.array([body], pa.binary()))
    return Outgoing(names.subject(Kind.SCHEMA, SCHEMA, NAME), pa.array([f"schema-{schema.name}"]), payload)
