"""The NATS client protocol as bytes: what is sent, and what came in taken apart. No socket and no clock.

Reference: https://docs.nats.io/reference/reference-protocols/nats-protocol
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from headwater.errors import BrokerError

_MESSAGE = re.compile(rb"MSG ([^ \r\n]+) (\d+) (?:([^ \r\n]+) )?(\d+)\r\n")
_HEADED = re.compile(rb"HMSG ([^ \r\n]+) (\d+) (?:([^ \r\n]+) )?(\d+) (\d+)\r\n")
_CONTROL = re.compile(rb"(PING|PONG|INFO|\+OK|-ERR)[ \t]*([^\r\n]*)\r\n")
_STATUS = re.compile(rb"NATS/1\.0 (\d+) ?([^\r\n]*)\r\n")
_END = b"\r\n"
# Longer than any line a server sends; its INFO of a large cluster has some tens of kilobytes.
_LONGEST_LINE = 1 << 20
HEADER_START = b"NATS/1.0\r\n"


class Message(NamedTuple):
    """A message as it came in; `headers` begins with the line NATS/1.0 and ends with an empty one."""

    subject: bytes
    sid: int
    reply: bytes
    headers: bytes | None
    payload: bytes

    @property
    def status(self) -> "Status | None":
        """What the server has to say instead of a message, if it does."""
        match = _STATUS.match(self.headers) if self.headers is not None else None
        return Status(int(match[1]), match[2].decode(errors="replace"), self.headers or b"") if match else None


class Status(NamedTuple):
    code: int
    reason: str
    headers: bytes

    def number(self, name: str) -> int | None:
        """A header that is a number; None when it is missing."""
        match = re.search(rb"\r\n" + re.escape(name.encode()) + rb": *(\d+)\r\n", self.headers)
        return int(match[1]) if match else None


class Control(NamedTuple):
    """A line that is no message: PING, PONG, INFO, +OK or -ERR, and what follows it."""

    verb: bytes
    text: bytes


class Inbound:
    """What came in and was not taken yet; a message may come in any number of pieces."""

    def __init__(self) -> None:
        self._data, self._at = b"", 0

    def add(self, data: bytes) -> None:
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._data)

    def take_run(self, pattern: re.Pattern[bytes]) -> bytes:
        """What matches at the front; empty when it does not match."""
        match = pattern.match(self._data, self._at)
        if match is None:
            return b""
        self._at = match.end()
        return match[0]

    def peek(self) -> tuple[bytes, int]:
        """All of it, and where it begins; for those who parse in bulk and `skip_to` where they ended."""
        return self._data, self._at

    def skip_to(self, at: int) -> None:
        self._at = at

    def take(self) -> Message | Control | None:
        """The next message or line; None when it is not complete yet."""
        data, at = self._data, self._at
        if match := _MESSAGE.match(data, at):
            subject, sid, reply, size = match.groups()
            return self._message(match.end(), (subject, sid, reply), 0, int(size))
        if match := _HEADED.match(data, at):
            subject, sid, reply, header_size, size = match.groups()
            return self._message(match.end(), (subject, sid, reply), int(header_size), int(size))
        if match := _CONTROL.match(data, at):
            self._at = match.end()
            return Control(match[1], match[2])
        if data.find(_END, at) >= 0 or len(data) - at > _LONGEST_LINE:
            raise BrokerError("what answers does not speak the NATS protocol; check the address and the port")
        return None

    def _message(self, at: int, line: tuple[bytes, bytes, bytes | None], header_size: int, size: int) -> Message | None:
        data, body = self._data, at + header_size
        if len(data) < at + size + len(_END):
            return None
        subject, sid, reply = line
        headers = data[at:body] if header_size else None
        self._at = at + size + len(_END)
        return Message(subject, int(sid), reply or b"", headers, data[body : at + size])


def connect(options: Mapping[str, object]) -> bytes:
    return b"CONNECT %b\r\n" % json.dumps(options).encode()


def subscribe(subject: str, sid: int) -> bytes:
    return f"SUB {subject} {sid}\r\n".encode()


def publish(subject: str, reply: str, payload: bytes) -> bytes:
    """Without a reply subject nobody answers."""
    return f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + _END
