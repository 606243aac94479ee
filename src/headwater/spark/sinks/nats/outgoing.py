"""Messages of one subject as the publisher takes them: ids, packets and headers, by columns. Pure.

Where a message is cut into packets depends on the server's limit alone: one that is sent again, after a crash and among
other messages, has the same packets under the same ids.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.brokers.nats.publisher import Outgoing
from headwater.creek.encode import UNCHANGED_HEADER
from headwater.creek.framing import MOST_PACKETS, Packets, frame
from headwater.postgres.replication.columnar import Ints
from headwater.spark.sinks.nats.identity import instants

# Creek's own packets end 7 bytes before the limit. Headers count, too: an id is some hundred bytes long, those of
# CloudEvents some hundred more, and the list of unchanged columns has as many names as a table may have.
_PACKET_BYTES: Final = 7
_HEADER_BYTES: Final = 8192


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of one subject in order, not in packets yet; `unchanged` as in `Encoded`, `keys` as JSON if they matter."""

    subject: str
    table: str
    ids: pa.StringArray
    ops: pa.StringArray
    committed_at: Ints
    payloads: pa.Array
    unchanged: pa.StringArray | None
    keys: pa.StringArray | None = None

    def __len__(self) -> int:
        return len(self.payloads)

    def taken(self, places: Ints) -> "Messages":
        """Some of them, in order."""
        if len(places) == len(self):
            return self
        index = pa.array(places)
        return Messages(
            self.subject,
            self.table,
            self.ids.take(index),
            self.ops.take(index),
            self.committed_at[places],
            self.payloads.take(index),
            None if self.unchanged is None else self.unchanged.take(index),
            None if self.keys is None else self.keys.take(index),
        )


@dataclass(frozen=True, slots=True)
class CloudEvents:
    """What all messages have in common: `source` is the database, `content_type` that of the payloads."""

    source: str
    content_type: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """What goes to the publisher; `messages` has for each of its packets the place of the message."""

    outgoing: Outgoing
    messages: Ints


def chunk_bytes(max_payload: int) -> int:
    """How much of a message goes into one packet."""
    return max_payload - _PACKET_BYTES - min(_HEADER_BYTES, max_payload // 4)


def too_large(messages: Messages, max_payload: int, *, in_packets: bool) -> Ints:
    """The places of messages that no number of packets, or no single one, can hold."""
    sizes = pc.binary_length(messages.payloads).to_numpy(zero_copy_only=False)
    chunk = chunk_bytes(max_payload)
    return np.flatnonzero(sizes >= (chunk * (MOST_PACKETS - 1) if in_packets else chunk))


def prepare(messages: Messages, max_payload: int, events: CloudEvents | None, *, in_packets: bool) -> Prepared:
    """The messages for the publisher, in Creek's packets if they are to be."""
    headers = _headers(messages, events)
    if not in_packets:
        ids = _suffixed(messages.ids, "-seq-0")
        return Prepared(Outgoing(messages.subject, ids, messages.payloads, headers), np.arange(len(messages)))
    framed = frame(messages.payloads, chunk_bytes(max_payload))
    if len(framed.packets) == len(messages):
        ids = _suffixed(messages.ids, "-seq-0")
        return Prepared(Outgoing(messages.subject, ids, framed.packets, headers), framed.messages)
    return _of_several(messages, framed, headers)


def _of_several(messages: Messages, framed: Packets, headers: pa.Array | None) -> Prepared:
    index = pa.array(framed.messages)
    numbers = pa.array(framed.numbers).cast(pa.string())
    ids = pc.binary_join_element_wise(messages.ids.take(index), "-seq-", numbers, "")
    # On every packet, so that it does not matter which of them a reader looks at.
    headers = None if headers is None else headers.take(index)
    starts = pa.array(framed.numbers == 0)
    return Prepared(Outgoing(messages.subject, ids, framed.packets, headers, starts), framed.messages)


def _suffixed(ids: pa.StringArray, suffix: str) -> pa.StringArray:
    return pc.binary_join_element_wise(ids, suffix, "")


def _headers(messages: Messages, events: CloudEvents | None) -> pa.Array | None:
    """The header lines of each message besides its id; None if there are none at all."""
    lines: list[object] = []
    if events is not None:
        head = {"specversion": "1.0", "source": events.source, "subject": messages.table}
        head |= {"datacontenttype": events.content_type}
        fixed = "".join(f"ce-{name}: {_value(text)}\r\n" for name, text in head.items())
        lines += [f"{fixed}ce-type: headwater.change.", messages.ops, "\r\nce-id: ", _encoded(messages.ids)]
        lines += ["\r\nce-time: ", instants(messages.committed_at), "\r\n"]
    if messages.unchanged is not None:
        line = pc.binary_join_element_wise(f"{UNCHANGED_HEADER}: ", messages.unchanged, "\r\n", "")
        lines.append(pc.fill_null(line, ""))
    if not lines:
        return None
    return pc.binary_join_element_wise(*lines, "").cast(pa.binary())


def _encoded(ids: pa.StringArray) -> pa.StringArray:
    """Ids as header values. Only the name of a database may have anything in it that is not plain, and it is in all."""
    first = ids[0].as_py() if len(ids) else ""
    if _value(first) == first:
        return ids
    return pa.array([_value(one) for one in ids.to_pylist()], pa.string())


def _value(text: str) -> str:
    """A value as CloudEvents have it in headers: what is no printable ASCII, blanks, quotes and % as %XX."""
    return quote(text, safe="!#$&'()*+,/:;=?@[]\\^`{|}~<>-._")
