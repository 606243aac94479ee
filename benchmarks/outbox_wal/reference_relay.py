"""The relay to compare with, as section 000 of the reference systems describes it.

Text of pgoutput, protocol 1; the inserts of a transaction in a list, handed on when its commit has come, one message at a
time, each acknowledged before the next is sent; a status update after every message of the WAL; the checkpoint a time and an
id in memory. Its recovery fetches a thousand rows at a time at the slot's snapshot, and moves the checkpoint after each.
All of it is as quick as that allows: nothing waits, and no more is decoded than is used.
"""

import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import nats
import psycopg
from nats.js import JetStreamContext
from psycopg import pq, sql

from benchmarks.outbox_wal import statements
from benchmarks.outbox_wal.testbed import Target
from headwater.model import Lsn
from headwater.postgres.connect import complete, connect_sync
from headwater.postgres.replication import protocol
from headwater.postgres.statements import execute_sync, fetch_sync

PUBLICATION: Final = "reference"
SKEW: Final = timedelta(seconds=-2)
_OPTIONS: Final = {"proto_version": "1", "publication_names": PUBLICATION}
_TEXT, _XLOG_DATA, _INSERT, _COMMIT, _RELATION = b"twICR"
# 2000-01-01, PostgreSQL's epoch, in microseconds of Unix time.
_EPOCH_MICROS: Final = 946_684_800_000_000
_STATUS: Final = struct.Struct("!cqqqqB")
_HEAD: Final = struct.Struct("!cqqq")
_SIZE: Final = struct.Struct("!I")
# Behind the tag, the relation and the kind of row: how many columns there are.
_ROW_AT = 1 + 4 + 1 + 2


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    created_at: datetime
    type: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Relayed:
    """What was sent and acknowledged, and the status updates that it took."""

    events: int
    status_packets: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was sent, how long the first rows took to come, and all that followed."""

    events: int
    seconds_to_first: float
    seconds_of_sending: float

    def seconds_of(self, events: int) -> float:
        """What so many take at this rate."""
        return self.seconds_to_first + events * self.seconds_of_sending / self.events


class Stream:
    """A replication connection that copies messages of the WAL to us."""

    def __init__(self, url: str, slot: str) -> None:
        self._connection = psycopg.connect(complete(url, replication="database"), autocommit=True)
        self._pgconn = self._connection.pgconn
        command = protocol.start_replication(slot, Lsn(0), _OPTIONS).as_string(self._connection)
        result = self._pgconn.exec_(command.encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message
        self.status_packets = 0

    def close(self) -> None:
        self._connection.close()

    def read(self) -> tuple[memoryview, int]:
        """The next message, and where the WAL is behind it; keepalives are answered on the way."""
        while True:
            length, data = self._pgconn.get_copy_data(0)
            assert length > 0, "the stream has ended"
            if data[0] == _XLOG_DATA:
                _, _, end, _ = _HEAD.unpack_from(data)
                return data[_HEAD.size :], end

    def send_status(self, applied: int) -> None:
        now = time.time_ns() // 1000 - _EPOCH_MICROS
        self._pgconn.put_copy_data(_STATUS.pack(b"r", applied, applied, applied, now, 0))
        self._pgconn.flush()
        self.status_packets += 1


class Sink:
    """One message per send, acknowledged when that returns."""

    def __init__(self, context: JetStreamContext, target: Target) -> None:
        self._context, self._subject = context, target.subject

    async def send(self, event: Event) -> None:
        headers = {"Nats-Msg-Id": event.id, "ce-type": event.type}
        await self._context.publish(self._subject, event.payload, headers=headers)


class Decoder:
    """Messages of pgoutput, row by row; `columns` are those of the publication, by name."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def describe(self, message: memoryview) -> None:
        """Note where the columns stand."""
        names = column_names(bytes(message))
        self._places = {name: place for place, name in enumerate(names)}

    def insert(self, message: memoryview) -> Event:
        values, at = [], _ROW_AT
        for _ in range(len(self._places)):
            if message[at] == _TEXT:
                (size,) = _SIZE.unpack_from(message, at + 1)
                values.append(message[at + 5 : at + 5 + size])
                at += 5 + size
            else:
                values.append(message[at:at])
                at += 1
        places = self._places
        return Event(
            str(values[places["id"]], "ascii"),
            datetime.fromisoformat(str(values[places["created_at"]], "ascii")),
            str(values[places["type"]], "utf-8"),
            bytes(values[places["payload"]]),
        )


def column_names(message: bytes) -> Iterator[str]:
    """The columns of a Relation message, in order."""
    _, at = _text_at(message, 1 + 4)
    _, at = _text_at(message, at)
    # Behind the replica identity stands how many there are; before each name its flags, behind it type and modifier.
    count = int.from_bytes(message[at + 1 : at + 3])
    at += 3
    for _ in range(count):
        name, at = _text_at(message, at + 1)
        yield name
        at += 8


async def relay(url: str, slot: str, target: Target, limit: int) -> Relayed:
    """Bring the events of a slot to a stream, until so many, or somewhat more, are there."""
    connection = await nats.connect(target.access.url)
    stream, sink, decoder = Stream(url, slot), Sink(connection.jetstream(), target), Decoder()
    transaction: list[Event] = []
    checkpoint: tuple[datetime, str] | None = None
    sent = 0
    try:
        while sent < limit:
            message, end = stream.read()
            match message[0]:
                case tag if tag == _INSERT:
                    transaction.append(decoder.insert(message))
                case tag if tag == _COMMIT and transaction:
                    for event in transaction:
                        await sink.send(event)
                    newest = max(transaction, key=lambda event: event.created_at)
                    checkpoint = newest.created_at + SKEW, newest.id
                    sent += len(transaction)
                    transaction.clear()
                case tag if tag == _RELATION:
                    decoder.describe(message)
            stream.send_status(end)
    finally:
        stream.close()
        await connection.close()
    assert checkpoint is not None, "nothing was sent"
    return Relayed(sent, stream.status_packets)


async def recover(url: str, slot: str, target: Target, after: statements.Key, limit: int) -> Recovered:
    """Send the rows after a checkpoint, in the order of their times, until so many are sent. The slot is made here."""
    nats_connection = await nats.connect(target.access.url)
    sink, checkpoint, sent = Sink(nats_connection.jetstream(), target), (after.created_at, UUID(after.id)), 0
    began = first = time.perf_counter()
    try:
        with exported(url, slot) as snapshot, closing(connect_sync(url)) as reader:
            execute_sync(reader, statements.read_as(snapshot))
            execute_sync(reader, statements.declare_cursor(after))
            while sent < limit and (rows := fetch_sync(reader, statements.fetch_rows())):
                first = first if sent else time.perf_counter()
                for row in rows:
                    await sink.send(Event(row.id, row.created_at, row.type, row.payload.encode()))
                    checkpoint = row.created_at, UUID(row.id)
                    sent += 1
            ended = time.perf_counter()
            execute_sync(reader, statements.end_reading())
    finally:
        await nats_connection.close()
    assert checkpoint > (after.created_at, UUID(after.id)), "nothing was sent"
    return Recovered(sent, first - began, ended - first)


@contextmanager
def exported(url: str, slot: str) -> Iterator[str]:
    """A new slot, and the name of its snapshot, which is there as long as nothing else is asked of the connection."""
    command = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput (SNAPSHOT 'export')").format(sql.Identifier(slot))
    connection: psycopg.Connection[Any] = psycopg.connect(complete(url, replication="database"), autocommit=True)
    with closing(connection):
        result = connection.pgconn.exec_(command.as_string(connection).encode())
        assert result.status == pq.ExecStatus.TUPLES_OK, result.error_message
        yield (result.get_value(0, 2) or b"").decode()


def _text_at(message: bytes, at: int) -> tuple[str, int]:
    """A text that ends with a zero, and the place behind that."""
    end = message.index(0, at)
    return message[at:end].decode(), end + 1
