"""The streaming replication protocol's own messages, as bytes: what comes inside CopyData and what goes back. Pure.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

import struct
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from psycopg import sql

from headwater.errors import DecodeError
from headwater.model import Lsn, TimelineSwitch

# XLogData: tag, WAL start, WAL end, server clock; the plugin's message follows.
XLOG_DATA: Final = ord("w")
XLOG_HEADER_BYTES: Final = 25
KEEPALIVE: Final = ord("k")

_KEEPALIVE = struct.Struct("!cQqB")
_STATUS = struct.Struct("!cQQQqB")
POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


class Keepalive(NamedTuple):
    """The server has sent everything that committed before `wal_end`; it may ask for a status update at once."""

    wal_end: Lsn
    reply_requested: bool


def parse_keepalive(data: bytes | memoryview) -> Keepalive:
    if len(data) < _KEEPALIVE.size or data[0] != KEEPALIVE:
        raise DecodeError(f"a keepalive has {_KEEPALIVE.size} bytes, this one {len(data)}", message_type=chr(data[0]))
    _, wal_end, _, reply = _KEEPALIVE.unpack_from(data)
    return Keepalive(Lsn(wal_end), bool(reply))


def status_update(confirmed: Lsn, received: Lsn, now: datetime, *, ask_reply: bool = False) -> bytes:
    """Tell the server what is durable here: it may forget all WAL before `confirmed`."""
    micros = (now - POSTGRES_EPOCH) // timedelta(microseconds=1)
    return _STATUS.pack(b"r", max(received, confirmed), confirmed, confirmed, micros, ask_reply)


def start_replication(slot: str, start: Lsn, options: Mapping[str, str]) -> sql.Composed:
    """The command that turns a connection into a stream of changes."""
    listed = sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(k), sql.Literal(v)) for k, v in options.items())
    return sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({})").format(sql.Identifier(slot), sql.SQL(str(start)), listed)


def parse_timeline_history(content: str) -> tuple[TimelineSwitch, ...]:
    """The switches in a timeline history file, oldest first: `timeline <tab> end LSN <tab> reason` a line."""
    lines = (line.split("#")[0].split() for line in content.splitlines())
    return tuple(TimelineSwitch(int(fields[0]), Lsn.parse(fields[1])) for fields in lines if len(fields) >= 2)
