"""Writes pgoutput messages, for tests that need more of them, or others, than a server would send."""

import struct
from collections.abc import Sequence

from headwater.model import UNCHANGED, Unchanged

Text = str | Unchanged | None


def begin(commit_lsn: int, micros: int = 0, xid: int = 1) -> bytes:
    return struct.pack("!cQqI", b"B", commit_lsn, micros, xid)


def commit(commit_lsn: int, end_lsn: int, micros: int = 0) -> bytes:
    return struct.pack("!cBQQq", b"C", 0, commit_lsn, end_lsn, micros)


def relation(oid: int, name: str, columns: Sequence[tuple[str, int, int, bool]], identity: str = "d") -> bytes:
    """Columns as (name, type oid, typmod, whether it is part of the identity)."""
    head = b"R" + struct.pack("!I", oid) + b"public\0" + name.encode() + b"\0" + identity.encode()
    body = b"".join(
        struct.pack("!B", key) + column.encode() + b"\0" + struct.pack("!Ii", type_oid, typmod)
        for column, type_oid, typmod, key in columns
    )
    return head + struct.pack("!H", len(columns)) + body


def row(values: Sequence[Text]) -> bytes:
    return struct.pack("!H", len(values)) + b"".join(map(_column, values))


def insert(oid: int, new: Sequence[Text]) -> bytes:
    return b"I" + struct.pack("!I", oid) + b"N" + row(new)


def update(oid: int, new: Sequence[Text], old: Sequence[Text] | None = None, kind: str = "K") -> bytes:
    before = b"" if old is None else kind.encode() + row(old)
    return b"U" + struct.pack("!I", oid) + before + b"N" + row(new)


def delete(oid: int, old: Sequence[Text], kind: str = "K") -> bytes:
    return b"D" + struct.pack("!I", oid) + kind.encode() + row(old)


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack("!IB", len(oids), 0) + struct.pack(f"!{len(oids)}I", *oids)


def message(lsn: int, prefix: str, content: bytes, *, transactional: bool = True) -> bytes:
    return (
        b"M" + struct.pack("!BQ", transactional, lsn) + prefix.encode() + b"\0" + struct.pack("!I", len(content)) + content
    )


def stream_start(xid: int, *, first: bool = True) -> bytes:
    return struct.pack("!cIB", b"S", xid, first)


def stream_stop() -> bytes:
    return b"E"


def stream_commit(xid: int, commit_lsn: int, end_lsn: int, micros: int = 0) -> bytes:
    return struct.pack("!cIBQQq", b"c", xid, 0, commit_lsn, end_lsn, micros)


def stream_abort(xid: int, subxid: int) -> bytes:
    return struct.pack("!cII", b"A", xid, subxid)


def streamed(data: bytes, xid: int) -> bytes:
    """The message as it stands in a stream block."""
    return data[:1] + struct.pack("!I", xid) + data[1:]


def _column(value: Text) -> bytes:
    if value is None:
        return b"n"
    if value is UNCHANGED or isinstance(value, Unchanged):
        return b"u"
    text = value.encode()
    return b"t" + struct.pack("!I", len(text)) + text
