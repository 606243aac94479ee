"""Headers of messages, looked for in the bytes as they came: most messages have one, and nobody asks for the others."""

from typing import Final
from urllib.parse import unquote

from headwater.creek.encode import UNCHANGED_HEADER

# What a snapshot's first message says of the changes that its rows hold, and its last one of how many rows there are.
SNAPSHOT: Final = "Headwater-Snapshot"
UNTIL: Final = "Headwater-Until"
ROWS: Final = "Headwater-Rows"
_OURS: Final = b"\r\nHeadwater-"
_ID: Final = b"\r\nNats-Msg-Id:"
# What follows the event's own id: the number of the packet, and whether it was sent again.
_PACKET: Final = "-seq-"


def find_header(headers: bytes | None, name: str) -> str | None:
    """The value of one of our own headers."""
    if headers is None or _OURS not in headers:
        return None
    return _value(headers, f"\r\n{name}:".encode())


def find_event_id(headers: bytes | None) -> str | None:
    """The id of the event, without what tells its packets apart."""
    packet_id = None if headers is None else _value(headers, _ID)
    return None if packet_id is None else packet_id.rpartition(_PACKET)[0] or packet_id


def find_unchanged(headers: bytes | None) -> tuple[str, ...]:
    """The columns whose value was not sent."""
    names = find_header(headers, UNCHANGED_HEADER)
    return () if names is None else tuple(unquote(name) for name in names.split(",") if name)


def _value(headers: bytes, start: bytes) -> str | None:
    at = headers.find(start)
    if at < 0:
        return None
    begin = at + len(start)
    return headers[begin : headers.find(b"\r\n", begin)].decode(errors="replace").strip()
