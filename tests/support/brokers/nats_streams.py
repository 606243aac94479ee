"""What is stored in streams of a NATS server, for tests: messages whole, with their headers, and those of Creek decoded."""

import json
import uuid
from contextlib import closing
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import Any
from urllib.parse import unquote

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.reader import Received, StreamReader
from headwater.brokers.nats.streams import StreamInfo, stream_info
from headwater.creek.decode import Decoder, WalMessage, decode_message
from headwater.creek.fingerprint import fingerprint_text
from headwater.creek.framing import Reassembly
from headwater.creek.messages import SchemaMessage
from headwater.creek.names import Kind, Names


@dataclass(frozen=True)
class Stored:
    """A message as the stream has it; `id` without the number of its packet."""

    subject: str
    sequence: int
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["Nats-Msg-Id"].rpartition("-seq-")[0]


def fresh_namespace() -> str:
    """One that no other test has: they share a server."""
    return f"T{uuid.uuid4().hex[:12]}"


def known_stream(link: Link, stream: str) -> StreamInfo:
    """What the server knows of a stream, which is there."""
    info = stream_info(link, stream)
    assert info is not None, f"there is no stream {stream}"
    return info


def stored(access: NatsAccess, stream: str, subject: str | None = None) -> list[Stored]:
    """Every message of a stream, or of one subject of it, as single messages or packets, in order."""
    with closing(Link(access)) as link:
        info = stream_info(link, stream, subject)
    if info is None:
        return []
    count = info.messages if subject is None else sum(info.subject_counts.values())
    found: list[Received] = []
    with closing(StreamReader(access, stream, [] if subject is None else [subject], 0)) as reader:
        while len(found) < count:
            read = reader.read(10_000, 5)
            assert read, f"{len(found)} of {count} messages came"
            found += read
    return [Stored(one.subject, one.sequence, _headers(one.headers), one.payload) for one in found]


def whole(packets: list[Stored]) -> list[Stored]:
    """Creek's messages put together from their packets."""
    reassembly, found = Reassembly(), []
    for packet in packets:
        body = reassembly.add(packet.subject, packet.body)
        if body is not None:
            found.append(Stored(packet.subject, packet.sequence, packet.headers, body))
    return found


def schemas(access: NatsAccess, names: Names) -> list[SchemaMessage]:
    return [SchemaMessage.from_json(one.body) for one in whole(stored(access, names.stream(Kind.SCHEMA)))]


def wal(access: NatsAccess, names: Names, table: str | None = None) -> list[WalMessage]:
    """The changes that were published, of a table `schema.table` or of all, decoded by the schemas of their stream.

    A message whose schema was not published before fails here, as it would for a reader.
    """
    known = {one.fingerprint: Decoder(one.schema) for one in schemas(access, names)}
    subject = None if table is None else names.subject(Kind.WAL, *table.split(".", 1))
    return [_decoded(one, known) for one in whole(stored(access, names.stream(Kind.WAL), subject))]


def json_changes(access: NatsAccess, names: Names) -> list[tuple[Stored, dict[str, Any]]]:
    return [(one, json.loads(one.body)) for one in stored(access, names.stream(Kind.WAL))]


def unchanged_of(message: Stored) -> tuple[str, ...]:
    listed = message.headers.get("Headwater-Unchanged", "")
    return tuple(unquote(name) for name in listed.split(",") if name)


def _decoded(message: Stored, known: dict[str, Decoder]) -> WalMessage:
    fingerprint, datum = decode_message(message.body)
    decoder = known[fingerprint_text(fingerprint)]
    return decoder.wal(datum, sequence=message.sequence, id=message.id, unchanged=unchanged_of(message))


def _headers(raw: bytes | None) -> dict[str, str]:
    if not raw:
        return {}
    text = raw.decode()
    return dict(HeaderParser().parsestr(text.split("\r\n", 1)[1] if text.startswith("NATS/") else text))
