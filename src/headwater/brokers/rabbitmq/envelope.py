"""Messages as RabbitMQ gets them: routing keys, properties and headers by columns, and what it would never take. Pure."""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.brokers.base import destinations
from headwater.brokers.columns import FEW, Row, event_columns, gathered, header_entries, holders, lengths, rows
from headwater.brokers.rabbitmq.access import SHORT_BYTES, RabbitmqAccess
from headwater.brokers.rabbitmq.frames import (
    FRAME_BYTES,
    HEADER_BYTES,
    Outgoing,
    constant,
    long_strings,
    numbers,
    short_strings,
)
from headwater.model import Messages

# The binding of CloudEvents for AMQP 1.0, of which there is none for 0.9.1.
PREFIX: Final = "cloudEvents:"
# RabbitMQ takes these for lists of routing keys, and closes the channel on a text.
_ROUTING: Final = ("CC", "BCC")
# In this order: content type, headers, delivery mode, message id, timestamp, type.
_FLAGS: Final = (1 << 15 | 1 << 13 | 1 << 12 | 1 << 7 | 1 << 6 | 1 << 5).to_bytes(2, "big")
_PERSISTENT: Final = b"\x02"
_TEXT: Final = b"S"
_LONG, _TIMESTAMP = struct.Struct(">I"), struct.Struct(">Q")
_MOST_CHARACTER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Envelopes:
    """What goes out, and what must not: the reason of each message that is refused, by its place."""

    outgoing: Outgoing
    refused: dict[int, str]


def envelop(messages: Messages, access: RabbitmqAccess) -> Envelopes:
    """All messages as they are published, in order; those that are refused are among them."""
    keys = destinations(access.routing_key, messages)
    plain = (
        _plain_properties(messages, access)
        if len(messages) <= FEW and not any(map(_is_long, keys.unique().to_pylist()))
        else None
    )
    properties = _properties(messages, access) if plain is None else plain
    outgoing = Outgoing(access.exchange, access.mandatory, keys, properties, messages.column("payload"))
    return Envelopes(outgoing, {} if plain is not None else _too_long(messages, keys) | _forbidden(messages))


def too_large(outgoing: Outgoing, max_bytes: int, frame_max: int) -> dict[int, str]:
    """What is beyond the limits of the broker, by place, and the reason."""
    headers = lengths(outgoing.properties) + HEADER_BYTES + FRAME_BYTES
    payloads = lengths(outgoing.payloads)
    found = {
        place: f"headers and properties of {headers[place]} bytes are more than a frame of {frame_max} bytes holds"
        for place in np.flatnonzero(headers > frame_max).tolist()
    }
    for place in np.flatnonzero(payloads > max_bytes).tolist():
        found[place] = f"a payload of {payloads[place]} bytes is more than RabbitMQ's limit of {max_bytes}"
    return found


def _properties(messages: Messages, access: RabbitmqAccess) -> pa.Array:
    seconds = np.asarray(messages.column("created_at").cast(pa.int64())) // 1_000_000
    return pc.binary_join_element_wise(
        constant(_FLAGS),
        short_strings(messages.column("content_type")),
        long_strings(_table(messages, access.source)),
        constant(_PERSISTENT),
        short_strings(messages.column("id")),
        # Unsigned: there is no time before 1970.
        numbers(np.maximum(seconds, 0), ">u8"),
        short_strings(messages.column("type")),
        constant(b""),
    )


def _plain_properties(messages: Messages, access: RabbitmqAccess) -> pa.Array | None:
    """The same one by one, which is faster for few; None where there is anything that has to be looked at closely."""
    try:
        encoded = [_plain_property(row, access) for row in rows(messages)]
    except OverflowError:
        return None
    return None if None in encoded else pa.array(encoded, pa.large_binary())


def _plain_property(row: Row, access: RabbitmqAccess) -> bytes | None:
    id, type, content_type = row.id.encode(), row.type.encode(), row.content_type.encode()
    if max(len(id), len(type), len(content_type)) > SHORT_BYTES:
        return None
    table: list[bytes] = []
    for name, value in row.event(access.source).items():
        encoded = value.encode()
        table += (_entry_head(PREFIX + name), _LONG.pack(len(encoded)), encoded)
    for name, value in row.headers:
        if name in _ROUTING or name.startswith(PREFIX) or _is_long(name):
            return None
        encoded = value.encode()
        table += (_entry_head(name), _LONG.pack(len(encoded)), encoded)
    entries = b"".join(table)
    return b"%b%c%b%b%b%b%c%b%b%c%b" % (
        _FLAGS,
        len(content_type),
        content_type,
        _LONG.pack(len(entries)),
        entries,
        _PERSISTENT,
        len(id),
        id,
        _TIMESTAMP.pack(max(row.seconds, 0)),
        len(type),
        type,
    )


def _is_long(text: str) -> bool:
    """Whether it has no room in a short string."""
    return len(text) * _MOST_CHARACTER_BYTES > SHORT_BYTES and len(text.encode()) > SHORT_BYTES


# Of the same few names.
@lru_cache(1000)
def _entry_head(name: str) -> bytes:
    """What stands before the value of an entry, but for its length."""
    encoded = name.encode()
    return b"%c%b%b" % (len(encoded), encoded, _TEXT)


def _table(messages: Messages, source: str) -> pa.Array:
    """The headers of each message: the attributes of the event, and the user's own."""
    entries = [_attribute(PREFIX + name, values) for name, values in event_columns(messages, source).items()]
    names, values, offsets = header_entries(messages)
    if len(names):
        own = pc.binary_join_element_wise(short_strings(names), constant(_TEXT), long_strings(values), constant(b""))
        entries.append(gathered(own, offsets))
    return pc.binary_join_element_wise(*entries, constant(b""))


def _attribute(name: str, values: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """One attribute as an entry of the table; nothing where it is null."""
    head = constant(_entry_head(name))
    if isinstance(values, pa.Scalar):
        text = values.as_py().encode()
        return constant(head.as_py() + len(text).to_bytes(4, "big") + text)
    entries = pc.binary_join_element_wise(head, long_strings(pc.fill_null(values, "")), constant(b""))
    return pc.if_else(pc.is_null(values), constant(b""), entries) if values.null_count else entries


def _too_long(messages: Messages, keys: pa.Array) -> dict[int, str]:
    """Messages with a text that has no room in AMQP's short strings."""
    columns = {
        "routing key": keys,
        "id": messages.column("id"),
        "type": messages.column("type"),
        "content type": messages.column("content_type"),
    }
    found: dict[int, str] = {}
    for what, values in columns.items():
        sizes = lengths(values)
        for place in np.flatnonzero(sizes > SHORT_BYTES).tolist():
            found[place] = f"a {what} of {sizes[place]} bytes is more than AMQP's {SHORT_BYTES}"
    return found


def _forbidden(messages: Messages) -> dict[int, str]:
    """Messages with headers that AMQP cannot hold, or that mean something else to RabbitMQ or to us."""
    names, _, offsets = header_entries(messages)
    if not len(names):
        return {}
    long = holders(pa.array(lengths(names) > SHORT_BYTES), names, offsets)
    routing = holders(pc.is_in(names, pa.array(_ROUTING)), names, offsets)
    ours = holders(pc.is_in(names, pa.array([PREFIX + name for name in event_columns(messages, "")])), names, offsets)
    return {
        **{place: f"header {name[:40]!r}... has a name beyond AMQP's {SHORT_BYTES} bytes" for place, name in long.items()},
        **{place: f"header {name!r} is a list of routing keys to RabbitMQ; rename it" for place, name in routing.items()},
        **{place: f"header {name!r} is an attribute of the event itself; rename it" for place, name in ours.items()},
    }
