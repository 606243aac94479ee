"""WAL messages: what is around the rows, and the decoder that a schema makes."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from struct import error as StructError  # noqa: N812 - the module's own name for it says nothing
from typing import Final, Generic, NamedTuple, TypeVar

from headwater.creek.decode.binary import read_long, read_string
from headwater.creek.decode.forms import PYTHON, instant
from headwater.creek.decode.rows import row_reader
from headwater.creek.decode.shape import ENVELOPE, Enumeration, Schema
from headwater.creek.encode import MAGIC
from headwater.errors import DecodeError, MessageError
from headwater.model import Lsn, Op

# The magic bytes and the fingerprint.
HEAD_BYTES: Final = 10
# The branches of a row, as they are written.
_NULL, _ROW = 0, 2
_SOURCE_FIELDS: Final = ("name", "tx_at", "db", "schema", "table", "tx_id", "last_lsn", "lsn")
# What readers of bytes come upon that are not what the schema says.
_MALFORMED: Final = (LookupError, ValueError, OverflowError, StructError, RecursionError, DecodeError)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a change comes from; `last_lsn`, the commit before it, is only in generation 1."""

    name: str
    tx_at: datetime
    db: str
    schema: str
    table: str
    tx_id: int
    last_lsn: Lsn | None
    lsn: Lsn


class WalMessage(NamedTuple):
    """A change of a row, or a truncate of the table, as Creek tells it.

    `before` has the columns of the key, or all of them under `replica identity full`; `after` has all columns, but those in
    `unchanged` are not known: they are as they were. `sequence` is the place in the stream: whoever goes on behind it misses
    nothing and gets nothing twice. `id` is the stable id of the event, if its producer gives it one.
    """

    # A tuple, because one is made for every message: a frozen dataclass of this size takes thrice the time.
    fingerprint: str
    source: Source
    op: Op
    sent_at: datetime
    before: dict[str, object] | None
    after: dict[str, object] | None
    unchanged: tuple[str, ...] = ()
    id: str | None = None
    sequence: int = 0

    @property
    def position(self) -> int:
        """Where to go on: the place of the message in the stream."""
        return self.sequence

    @property
    def ordinal(self) -> int | None:
        """The place of the change in its transaction, from 0; known for messages of Headwater's producers."""
        match (self.id or "").rsplit(".", 2):
            case [_, lsn, ordinal] if lsn == f"{self.source.lsn:X}" and ordinal.isdecimal():
                return int(ordinal)
        return None


def decode_message(message: bytes) -> tuple[bytes, bytes]:
    """The fingerprint of a WAL message's schema, and the Avro datum."""
    if message[:2] != MAGIC or len(message) <= HEAD_BYTES:
        raise MessageError(f"not a Creek message: it begins with {message[:HEAD_BYTES].hex(' ')}")
    return message[2:HEAD_BYTES], message[HEAD_BYTES:]


class Envelope(Generic[R]):
    """Reads the data of one schema; what rows become is up to the readers that it is given.

    Messages of one transaction begin with the same bytes, and many are sent at once: what was read of them last is kept.
    """

    def __init__(
        self,
        schema: Schema,
        before: Callable[[bytes, int], tuple[R, int]],
        after: Callable[[bytes, int], tuple[R, int]],
    ) -> None:
        if not schema.is_envelope:
            raise MessageError(f"the schema of {schema.record.name!r} is not that of WAL messages, {ENVELOPE!r}")
        self._before, self._after, self._table = before, after, schema.after.name
        self._source_fields = self._check(schema)
        self._ops = self._symbols(schema)
        self._begin, self._fingerprint, self._source = b"", "", _NOWHERE
        self._sent_bytes, self._sent_at = b"", _NOWHERE.tx_at

    @staticmethod
    def _check(schema: Schema) -> tuple[str, ...]:
        source = schema.parts["source"].record
        names = tuple(field.name for field in source.fields) if source else ()
        if tuple(schema.parts) != ("fingerprint", "source", "op", "sent_at", "before", "after") or names not in (
            _SOURCE_FIELDS,
            tuple(name for name in _SOURCE_FIELDS if name != "last_lsn"),
        ):
            raise MessageError(f"the schema has other fields than Creek's messages: {', '.join((*schema.parts, *names))}")
        return names

    @staticmethod
    def _symbols(schema: Schema) -> dict[int, Op]:
        """The operations by the byte that stands for them."""
        (node,) = schema.parts["op"].shape.branches
        symbols = node.symbols if isinstance(node, Enumeration) else ()
        try:
            return {index << 1: Op(symbol) for index, symbol in enumerate(symbols)}
        except ValueError as error:
            raise MessageError(f"the schema has an operation that Creek does not know: {error}") from error

    def read(self, data: bytes) -> tuple[str, Source, Op, datetime, R | None, R | None]:
        """Fingerprint, source, operation, time of sending, and the two rows."""
        try:
            return self._read(data)
        except _MALFORMED as error:
            raise MessageError(f"a message of {self._table} cannot be decoded: {error}") from error

    def _read(self, data: bytes) -> tuple[str, Source, Op, datetime, R | None, R | None]:
        if not self._begin or not data.startswith(self._begin):
            self._read_begin(data)
        place = len(self._begin)
        op = self._ops[data[place]]
        place += 1
        if not self._sent_bytes or not data.startswith(self._sent_bytes, place):
            self._read_sent_at(data, place)
        place += len(self._sent_bytes)
        before = after = None
        if data[place] == _ROW:
            before, place = self._before(data, place + 1)
        elif data[place] == _NULL:
            place += 1
        else:
            raise MessageError(f"a row has no branch {data[place] >> 1}")
        if data[place] == _ROW:
            after, place = self._after(data, place + 1)
        elif data[place] == _NULL:
            place += 1
        else:
            raise MessageError(f"a row has no branch {data[place] >> 1}")
        if place != len(data):
            raise MessageError(f"it has {len(data)} bytes, and its schema {place}")
        return self._fingerprint, self._source, op, self._sent_at, before, after

    def _read_begin(self, data: bytes) -> None:
        fingerprint, place = read_string(data, 0)
        found: dict[str, str | int] = {"last_lsn": ""}
        for name in self._source_fields:
            read = read_long if name in ("tx_at", "tx_id") else read_string
            found[name], place = read(data, place)
        last = str(found["last_lsn"])
        source = Source(
            str(found["name"]),
            _moment(int(found["tx_at"])),
            str(found["db"]),
            str(found["schema"]),
            str(found["table"]),
            int(found["tx_id"]),
            Lsn.parse(last) if last else None,
            Lsn.parse(str(found["lsn"])),
        )
        if place >= len(data):
            raise MessageError("it ends before its rows")
        # All at once: what belongs to a message that cannot be read must not be taken for the next one's.
        self._fingerprint, self._source, self._begin = fingerprint, source, data[:place]

    def _read_sent_at(self, data: bytes, place: int) -> None:
        sent_at, end = read_long(data, place)
        self._sent_bytes, self._sent_at = data[place:end], _moment(sent_at)


class Decoder:
    """Makes Python values of the data of one schema: of WAL messages, or of a snapshot's rows."""

    def __init__(self, schema_text: str) -> None:
        self.schema = Schema(schema_text)
        self._row = row_reader(self.schema.after, PYTHON)
        self._envelope = (
            Envelope(self.schema, row_reader(self.schema.before, PYTHON), self._row) if self.schema.is_envelope else None
        )

    def wal(self, datum: bytes, sequence: int = 0, id: str | None = None, unchanged: tuple[str, ...] = ()) -> WalMessage:
        """A WAL message from its datum; the rest is known from around it."""
        if self._envelope is None:
            raise MessageError(f"the schema of {self.schema.record.name!r} is that of a snapshot, not of WAL messages")
        return WalMessage._make((*self._envelope.read(datum), unchanged, id, sequence))

    def row(self, datum: bytes) -> dict[str, object]:
        """A row of a snapshot."""
        return whole(self._row, datum, self.schema)


def whole(read: Callable[[bytes, int], tuple[R, int]], datum: bytes, schema: Schema) -> R:
    """A row that is all of a datum."""
    try:
        row, end = read(datum, 0)
    except _MALFORMED as error:
        raise MessageError(f"a row of {schema.record.name!r} cannot be decoded: {error}") from error
    if end != len(datum):
        raise MessageError(f"a row of {schema.record.name!r} has {len(datum)} bytes, and its schema {end}")
    return row


def _moment(microseconds: int) -> datetime:
    value = instant(microseconds)
    if isinstance(value, str):
        raise MessageError(f"{value} is no time of a message")
    return value


_NOWHERE: Final = Source("", _moment(0), "", "", "", 0, None, Lsn(0))
