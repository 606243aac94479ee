"""The messages of the pgoutput plugin, protocol 1 to 4 in text mode: bytes in, values out. Pure, one message at a time.

A message inside a stream block (between Stream Start and Stream Stop) carries the id of its (sub)transaction behind its tag;
`decode` has to be told, since the bytes do not say. Whatever is not a message raises DecodeError.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

import struct
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, TypeVar

from headwater.errors import DecodeError
from headwater.model import UNCHANGED, Lsn, Unchanged
from headwater.postgres.replication.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    Message,
    Origin,
    PgoutputMessage,
    Prepare,
    Relation,
    RelationColumn,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Tuple,
    Type,
    Update,
    Value,
)
from headwater.postgres.replication.protocol import POSTGRES_EPOCH

# The messages that carry a transaction id behind their tag when they come inside a stream block.
STREAMED_TAGS: Final = frozenset(b"RYIUDTM")

_UINT8, _UINT16, _INT32, _UINT32 = (struct.Struct(form) for form in ("!B", "!H", "!i", "!I"))
_TEXT: Final = ord("t")
_NO_TEXT: Final[Mapping[int, Unchanged | None]] = {ord("n"): None, ord("u"): UNCHANGED}
_UINT64, _INT64 = struct.Struct("!Q"), struct.Struct("!q")
# No server gets as far as the 64th bit, and columns of positions are integers with sign.
MAX_LSN: Final = 2**63 - 1
# The longest span datetime can hold beyond 2000 is far shorter than 63 bits of microseconds.
LATEST_MICROS: Final = (datetime.max.replace(tzinfo=POSTGRES_EPOCH.tzinfo) - POSTGRES_EPOCH) // timedelta(microseconds=1)


class Reader:
    """Takes fields off a message from left to right; every step that would leave the message raises DecodeError."""

    __slots__ = ("_data", "_position", "tag")

    def __init__(self, data: bytes | memoryview) -> None:
        if not data:
            raise DecodeError("the message is empty")
        self._data, self._position = bytes(data), 1
        self.tag = chr(self._data[0])

    def fail(self, reason: str) -> DecodeError:
        return DecodeError(reason, message_type=self.tag)

    def number(self, form: struct.Struct) -> int:
        try:
            (value,) = form.unpack_from(self._data, self._position)
        except struct.error:
            raise self.fail(f"it ends after {len(self._data)} bytes, in mid field") from None
        self._position += form.size
        return int(value)

    def uint8(self) -> int:
        return self.number(_UINT8)

    def uint16(self) -> int:
        return self.number(_UINT16)

    def int32(self) -> int:
        return self.number(_INT32)

    def uint32(self) -> int:
        return self.number(_UINT32)

    def lsn(self) -> Lsn:
        lsn = self.number(_UINT64)
        if lsn > MAX_LSN:
            raise self.fail(f"{lsn:#x} is not a WAL position")
        return Lsn(lsn)

    def time(self) -> datetime:
        micros = self.number(_INT64)
        if not 0 <= micros <= LATEST_MICROS:
            raise self.fail(f"{micros} microseconds since 2000 is not a time stamp")
        return POSTGRES_EPOCH + timedelta(microseconds=micros)

    def letter(self, allowed: str) -> str:
        letter = chr(self.uint8())
        if letter not in allowed:
            raise self.fail(f"{letter!r} stands where one of {', '.join(allowed)} must")
        return letter

    def string(self) -> str:
        end = self._data.find(b"\0", self._position)
        if end < 0:
            raise self.fail("a string in it has no end")
        raw, self._position = self._data[self._position : end], end + 1
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.fail("a string in it is not UTF-8") from None

    def take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise self.fail(f"a field of {length} bytes leaves the message")
        raw, self._position = self._data[self._position : end], end
        return raw

    def row(self) -> Tuple:
        """The columns of a row; written out in one loop, since most of the time of decoding is spent here."""
        data, at = self._data, self._position + 2
        values: list[Value] = []
        try:
            for _ in range(self.uint16()):
                kind = data[at]
                if kind == _TEXT:
                    start = at + 5
                    at = start + _UINT32.unpack_from(data, at + 1)[0]
                    if at > len(data):
                        raise self.fail("a column leaves the message")
                    values.append(data[start:at])
                elif kind in _NO_TEXT:
                    values.append(_NO_TEXT[kind])
                    at += 1
                else:
                    raise self.fail(f"a column is of kind {chr(kind)!r}, neither text nor NULL nor unchanged")
        except (IndexError, struct.error):
            raise self.fail(f"it ends after {len(data)} bytes, in mid row") from None
        self._position = at
        return tuple(values)

    def old_row(self) -> Tuple:
        """The columns of an old row, which the server writes out whole."""
        values = self.row()
        if UNCHANGED in values:
            raise self.fail("a column of an old row is marked as unchanged")
        return values

    @property
    def at_end(self) -> bool:
        return self._position == len(self._data)

    def finish(self) -> None:
        if not self.at_end:
            raise self.fail(f"{len(self._data) - self._position} bytes are left over at its end")


def decode(data: bytes | memoryview, *, streamed: bool = False) -> PgoutputMessage:
    """Decode one message; `streamed` says that it came inside a stream block."""
    reader = Reader(data)
    decoder = _DECODERS.get(reader.tag)
    if decoder is None:
        raise reader.fail("there is no such message")
    if streamed and data[0] in STREAMED_TAGS:
        reader.uint32()
    message = decoder(reader)
    reader.finish()
    return message


def decode_subtransaction(data: bytes | memoryview) -> int:
    """The id of the (sub)transaction that wrote a message of a stream block."""
    return Reader(data).uint32()


Decoded = TypeVar("Decoded", bound=PgoutputMessage)


def expect(kind: type[Decoded], message: bytes | memoryview | None) -> Decoded:
    """Decode a message that must be of one kind."""
    decoded = decode(message or b"")
    if not isinstance(decoded, kind):
        raise DecodeError(f"{kind.__name__} was expected", message_type=type(decoded).__name__)
    return decoded


@lru_cache(maxsize=4096)
def parse_relation(message: bytes) -> Relation:
    """The relation that a Relation message, without a transaction id, describes."""
    return expect(Relation, message)


def text_of(value: bytes) -> str:
    """A value's text. Bytes that are not UTF-8 become `\\ooo`.

    They come from a `"char"` above 127, which PostgreSQL 16 and later write that way themselves, and from databases whose
    encoding is SQL_ASCII, where nobody knows what they mean.
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "".join(chr(byte) if byte < 128 else f"\\{byte:03o}" for byte in value)


def _begin(reader: Reader) -> Begin:
    return Begin(reader.lsn(), reader.time(), reader.uint32())


def _commit(reader: Reader) -> Commit:
    reader.uint8()
    return Commit(reader.lsn(), reader.lsn(), reader.time())


def _origin(reader: Reader) -> Origin:
    return Origin(reader.lsn(), reader.string())


def _relation(reader: Reader) -> Relation:
    oid, schema, name = reader.uint32(), reader.string(), reader.string()
    identity, count = reader.letter("dnfi"), reader.uint16()
    # The catalog's own schema is sent as an empty string.
    columns = tuple(_relation_column(reader) for _ in range(count))
    if len({column.name for column in columns}) != count:
        raise reader.fail(f"two columns of {schema}.{name} have the same name")
    return Relation(oid, schema or "pg_catalog", name, identity, columns)


def _relation_column(reader: Reader) -> RelationColumn:
    flags, name = reader.uint8(), reader.string()
    return RelationColumn(name, bool(flags & 1), reader.uint32(), reader.int32())


def _type(reader: Reader) -> Type:
    return Type(reader.uint32(), reader.string() or "pg_catalog", reader.string())


def _insert(reader: Reader) -> Insert:
    oid = reader.uint32()
    reader.letter("N")
    return Insert(oid, reader.row())


def _update(reader: Reader) -> Update:
    oid, kind = reader.uint32(), reader.letter("KON")
    if kind == "N":
        return Update(oid, None, None, reader.row())
    old = reader.old_row()
    reader.letter("N")
    return Update(oid, kind, old, reader.row())


def _delete(reader: Reader) -> Delete:
    return Delete(reader.uint32(), reader.letter("KO"), reader.old_row())


def _truncate(reader: Reader) -> Truncate:
    count, flags = reader.uint32(), reader.uint8()
    return Truncate(tuple(reader.uint32() for _ in range(count)), bool(flags & 1), bool(flags & 2))


def _message(reader: Reader) -> Message:
    flags, lsn, prefix = reader.uint8(), reader.lsn(), reader.string()
    return Message(bool(flags & 1), lsn, prefix, reader.take(reader.int32()))


def _stream_start(reader: Reader) -> StreamStart:
    return StreamStart(reader.uint32(), bool(reader.uint8()))


def _stream_commit(reader: Reader) -> StreamCommit:
    xid = reader.uint32()
    reader.uint8()
    return StreamCommit(xid, reader.lsn(), reader.lsn(), reader.time())


def _stream_abort(reader: Reader) -> StreamAbort:
    xid, subxid = reader.uint32(), reader.uint32()
    if reader.at_end:
        return StreamAbort(xid, subxid, None, None)
    return StreamAbort(xid, subxid, reader.lsn(), reader.time())


def _begin_prepare(reader: Reader) -> BeginPrepare:
    return BeginPrepare(reader.lsn(), reader.lsn(), reader.time(), reader.uint32(), reader.string())


def _prepare(reader: Reader) -> Prepare:
    reader.uint8()
    return Prepare(reader.lsn(), reader.lsn(), reader.time(), reader.uint32(), reader.string())


def _commit_prepared(reader: Reader) -> CommitPrepared:
    reader.uint8()
    return CommitPrepared(reader.lsn(), reader.lsn(), reader.time(), reader.uint32(), reader.string())


def _rollback_prepared(reader: Reader) -> RollbackPrepared:
    reader.uint8()
    end, rollback, prepared_at, rolled_back_at = reader.lsn(), reader.lsn(), reader.time(), reader.time()
    return RollbackPrepared(end, rollback, prepared_at, rolled_back_at, reader.uint32(), reader.string())


def _stream_prepare(reader: Reader) -> StreamPrepare:
    reader.uint8()
    return StreamPrepare(reader.lsn(), reader.lsn(), reader.time(), reader.uint32(), reader.string())


_DECODERS: Mapping[str, Callable[[Reader], PgoutputMessage]] = {
    "B": _begin,
    "C": _commit,
    "O": _origin,
    "R": _relation,
    "Y": _type,
    "I": _insert,
    "U": _update,
    "D": _delete,
    "T": _truncate,
    "M": _message,
    "S": _stream_start,
    "E": lambda _: StreamStop(),
    "c": _stream_commit,
    "A": _stream_abort,
    "b": _begin_prepare,
    "P": _prepare,
    "K": _commit_prepared,
    "r": _rollback_prepared,
    "p": _stream_prepare,
}
